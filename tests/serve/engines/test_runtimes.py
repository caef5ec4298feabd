import pytest

from pipework.serve.engines.runtimes import RUNTIMES, runtime_of


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_format_has_one_runtime(runtime):
    assert runtime_of(runtime.format) is runtime
