"""Which TensorRT package opens an engine, and whether an engine fits this machine."""

import importlib.util
from enum import Enum
from types import SimpleNamespace

import pytest

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines import tensorrt, tensorrt_packages
from pipework.serve.engines.cuda import Gpu, NoGpuError
from pipework.serve.engines.runtime import Usability
from pipework.serve.engines.tensorrt import TensorRt
from pipework.serve.engines.tensorrt_packages import (
    Flavour,
    builder_flavour,
    check_fits,
    collecting,
    dotted,
    fits_here,
    load,
    target_of,
)


def test_the_package_that_an_engine_needs_is_the_one_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for flavour, extra in (("tensorrt", "gpu"), ("tensorrt_rtx", "tensorrt-rtx")):
        with pytest.raises(MissingDependencyError, match=f"{flavour} is not installed") as caught:
            load(flavour)
        assert caught.value.hint == f"pip install 'pipework[{extra}]'"


VERSION = "1.7.1"  # of the fixture gpu
L4 = Gpu(name="Fake L4", capability=89)


def test_an_engine_of_another_version_or_gpu_is_refused_in_words(gpu):
    check_fits(gpu.built, VERSION, L4)
    with pytest.raises(RunFolderError, match=r"built with tensorrt_rtx 1\.7\.1; installed is 1\.8"):
        check_fits(gpu.built, "1.8", L4)
    expected = (
        r"built for compute capabilities 8\.6, 8\.9; "
        r"this machine has Old of compute capability 7\.5"
    )
    with pytest.raises(NoGpuError, match=expected) as caught:
        check_fits(gpu.built, VERSION, Gpu(name="Old", capability=75))
    assert "pipe export RUN --to tensorrt" in caught.value.hint
    named = gpu.built.model_copy(update={"target": "Fake L4"})
    check_fits(named, VERSION, L4)
    with pytest.raises(NoGpuError, match="built for Fake L4; this machine has Other"):
        check_fits(named, VERSION, Gpu(name="Other", capability=89))


def test_without_a_package_nothing_is_built_and_no_engine_fits(gpu, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="no package that builds") as caught:
        builder_flavour()
    assert Flavour.RTX.install in caught.value.hint
    assert TensorRt().local_precisions() == ()
    assert not fits_here(gpu.built)


@pytest.mark.parametrize(
    ("flavour", "capability", "builds"),
    [
        (Flavour.RTX, 89, True),
        (Flavour.RTX, 121, True),
        (Flavour.RTX, 90, False),
        (Flavour.TENSORRT, 90, True),
    ],
)
def test_auto_builds_only_if_the_package_supports_the_gpu(monkeypatch, flavour, capability, builds):
    names = ("NONE", "CURRENT", "SM75", "SM80", "SM86", "SM89", "SM120", "SM121")
    package = SimpleNamespace(
        __version__=VERSION, ComputeCapability=Enum("ComputeCapability", names)
    )
    monkeypatch.setattr(tensorrt_packages, "_package", lambda _: package)
    monkeypatch.setattr(tensorrt, "load", lambda _: package)
    monkeypatch.setattr(tensorrt, "builder_flavour", lambda: flavour)
    gpu = Gpu(name="Fake", capability=capability)
    monkeypatch.setattr(tensorrt, "gpu_or_none", lambda: gpu)
    assert bool(TensorRt().local_precisions()) is builds
    usable, details = TensorRt().examine(Precision.FP16)
    assert usable is (Usability.YES if builds else Usability.BUILD_ONLY)
    assert details.endswith("builds engines for other machines") is not builds


@pytest.mark.parametrize(("capability", "text"), [(89, "8.9"), (75, "7.5"), (120, "12.0")])
def test_a_compute_capability_is_written_as_nvidia_writes_it(capability, text):
    assert dotted(capability) == text


def test_the_target_is_a_gpu_or_compute_capabilities():
    assert target_of(L4, (80, 120)) == "Fake L4"
    assert target_of(None, (80, 120)) == "compute capabilities 8.0, 12.0"


def test_the_recorded_capabilities_are_those_that_the_check_reads(gpu):
    built = gpu.built.model_copy(update={"target": target_of(None, (120, 89))})
    check_fits(built, VERSION, L4)
    with pytest.raises(NoGpuError):  # 2.0 is a part of 12.0
        check_fits(built, VERSION, Gpu(name="Old", capability=20))


def test_the_logger_collects_the_first_line_of_errors_only(gpu):
    logger = collecting(gpu.trt)
    logger.log(gpu.trt.ILogger.ERROR, "  no memory\nand more")
    logger.log("warning", "slow")
    logger.log(gpu.trt.ILogger.INTERNAL_ERROR, "broken")
    assert logger.errors == ["no memory", "broken"]
