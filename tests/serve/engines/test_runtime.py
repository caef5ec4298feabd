import pytest

from pipework.errors import MissingDependencyError
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines import runtime
from pipework.serve.engines.runtime import Usability, check_installed, cpu_usability


def test_a_missing_package_is_reported_with_the_install_command():
    with pytest.raises(MissingDependencyError, match="absent_package is not installed") as caught:
        check_installed("absent_package", "cpu")
    assert caught.value.hint == "pip install 'pipework[cpu]'"


def test_int8_is_slow_on_a_processor_without_its_instructions(monkeypatch):
    monkeypatch.setattr(runtime, "sums_int8", lambda: False)
    usable, details = cpu_usability(Precision.INT8, "toy")
    assert usable is Usability.SLOW
    assert details == "toy, which has no instructions for int8 sums (VNNI or AMX)"
    assert cpu_usability(Precision.FP32, "toy") == (Usability.YES, "toy")
