import pytest

from pipework.export.config import RoundedToleranceSettings
from pipework.export.rows.tolerances import TOLERANCES
from pipework.run_folder.engine_record import Precision

ORDER = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)


def test_each_precision_has_a_tolerance():
    assert TOLERANCES.keys() == {*Precision}


@pytest.mark.parametrize("limit", RoundedToleranceSettings.model_fields)
def test_a_lower_precision_has_no_narrower_limit(limit):
    limits = [getattr(TOLERANCES[precision], limit) for precision in ORDER]
    if "ratio" in limit:  # float32 has none: its errors are not those of rounding
        assert limits.pop(0) is None
    assert limits == sorted(limits)


@pytest.mark.parametrize("precision", Precision)
def test_the_limits_of_a_precision_are_consistent(precision):
    found = TOLERANCES[precision]
    assert 0 < found.mean_abs < found.max_abs
    assert 0 < found.spread <= found.max_abs
    assert found.flips_outside <= found.flips < 0.05
    assert found.score_drop <= 0.005


def test_float32_allows_no_change_beyond_the_error_bound():
    assert TOLERANCES[Precision.FP32].flips_outside == 0
    assert TOLERANCES[Precision.FP32].max_abs <= 1e-4
