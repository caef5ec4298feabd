import pytest

from pipework.errors import ConfigError
from pipework.export.config import (
    TOLERANCES,
    ExportSettings,
    RoundedToleranceSettings,
    ToleranceSettings,
    TritonBackend,
)
from pipework.run_folder.engine_record import Precision
from pipework.settings import load_settings

ORDER = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)


def settings(*overrides):
    return load_settings(ExportSettings, None, [*overrides])


def test_an_override_changes_one_limit_of_one_precision():
    given = settings("tolerances.int8.max_abs=3").tolerances
    for precision, default in TOLERANCES.items():
        found = given.for_precision(precision).apply_to(default)
        if precision is Precision.INT8:
            assert found == default.model_copy(update={"max_abs": 3.0})
        else:
            assert found == default


@pytest.mark.parametrize("precision", Precision)
def test_each_precision_has_its_own_overrides(precision):
    given = settings(f"tolerances.{precision}.flips=0.5").tolerances
    changed = [one for one in Precision if given.for_precision(one).flips is not None]
    assert changed == [precision]


def test_a_limit_of_zero_is_an_override():
    default = TOLERANCES[Precision.INT8]
    assert ToleranceSettings(score_drop=0).apply_to(default).score_drop == 0
    assert ToleranceSettings().apply_to(default) == default


@pytest.mark.parametrize(
    "override",
    ["dev_rows=0", "triton.backend=torch"],
)
def test_an_invalid_setting_is_rejected(override):
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        settings(override)


@pytest.mark.parametrize(
    "key",
    ["tolerances.fp64", "rows", "tolerances.fp32.error_ratio", "tolerances.fp32.bias_ratio"],
)
def test_an_unknown_setting_is_rejected(key):
    with pytest.raises(ConfigError, match=key):
        settings(f"{key}=1")


def test_a_triton_backend_is_chosen_by_name():
    triton = settings("triton.backend=onnxruntime", "triton.instances=3").triton
    assert (triton.backend, triton.instances) == (TritonBackend.ONNXRUNTIME, 3)
    assert triton.name is None


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
