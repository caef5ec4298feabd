"""GPU memory: with a fake of CUDA on host memory, and with a real GPU if there is one."""

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pipework.errors import MissingDependencyError
from pipework.serve.engines import cuda
from pipework.serve.engines.cuda import (
    DeviceArrays,
    Gpu,
    NoGpuError,
    check_driver,
    checked,
    find_gpu,
    lost_gpu,
)
from pipework.serve.engines.tensorrt_packages import gpu_or_none


def test_a_device_without_room_says_so_and_keeps_nothing(gpu):
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        DeviceArrays({"small": 64, "large": 1 << 40})
    assert gpu.cuda.kept == {}


def test_whatever_of_the_memory_is_refused_the_rest_is_given_back(gpu, monkeypatch):
    refused = gpu.cuda.cudaError_t.cudaErrorMemoryAllocation, None
    monkeypatch.setattr(gpu.cuda, "cudaMallocHost", lambda _size: refused)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        DeviceArrays({"x": 64})
    assert gpu.cuda.kept == {}
    monkeypatch.setattr(gpu.cuda, "cudaStreamCreateWithFlags", lambda _flags: refused)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        DeviceArrays({"x": 64})


def test_an_array_larger_than_its_room_is_refused(gpu):
    del gpu
    with (
        DeviceArrays({"ids": 64}) as arrays,
        pytest.raises(ValueError, match=r"ids \[9\] is large"),
    ):
        arrays.upload("ids", np.zeros(9, np.int64))


def test_what_comes_back_is_not_overwritten_by_the_next_call(gpu):
    del gpu
    with DeviceArrays({"x": 16}) as arrays:
        arrays.upload("x", np.array([1, 2], np.int64))
        first = arrays.download("x", (2,), np.int64)
        arrays.upload("x", np.array([3, 4], np.int64))
        assert arrays.download("x", (2,), np.int64).tolist() == [3, 4]
    assert first.tolist() == [1, 2]


def test_without_a_gpu_the_reason_is_given():
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here")
    with pytest.raises(NoGpuError, match=r"there is no NVIDIA GPU here \(cudaError"):
        find_gpu()


def test_an_old_driver_is_not_reported_as_a_missing_gpu(gpu, monkeypatch, tmp_path):
    old = gpu.cuda.cudaError_t.cudaErrorInsufficientDriver, 0
    monkeypatch.setattr(gpu.cuda, "cudaGetDeviceCount", lambda: old)
    monkeypatch.setattr(cuda, "NVIDIA_VERSION", tmp_path / "version")
    with pytest.raises(NoGpuError, match="there is no NVIDIA GPU"):
        find_gpu()
    (tmp_path / "version").write_text("470.82.01\n")
    with pytest.raises(MissingDependencyError, match=r"driver 470\.82\.01 is too old") as caught:
        find_gpu()
    assert not isinstance(caught.value, NoGpuError)
    assert "pip install 'pipework[cuda12]'" in caught.value.hint


@pytest.mark.parametrize(
    ("driver", "version", "supported"),
    [
        ("580.65.06", "13.0", True),
        ("570.86.15", "13.0", False),
        ("570.86.15", "12.8", True),
        ("525.60.13", "12.0", True),
        ("515.48.07", "12.8", False),
        ("470.82.01", "14.0", True),  # not known
    ],
)
def test_the_driver_is_compared_with_the_cuda_of_a_package(
    monkeypatch, tmp_path, driver, version, supported
):
    monkeypatch.setattr(cuda, "NVIDIA_VERSION", tmp_path / "version")
    check_driver(version)
    (tmp_path / "version").write_text(f"{driver}\n")
    if supported:
        check_driver(version)
        return
    expected = rf"CUDA {version[:2]} needs the NVIDIA driver 5\d\d or later, found {driver}"
    with pytest.raises(MissingDependencyError, match=expected) as caught:
        check_driver(version)
    assert "pip install 'pipework[cuda12]'" in caught.value.hint


@pytest.mark.parametrize("name", ["cudaErrorNoDevice", "cudaErrorStubLibrary", "cudaSuccess"])
def test_only_a_machine_without_a_device_or_a_driver_has_no_gpu(gpu, monkeypatch, name):
    monkeypatch.setattr(gpu.cuda, "cudaGetDeviceCount", lambda: (gpu.cuda.cudaError_t[name], 0))
    with pytest.raises(NoGpuError, match=rf"there is no NVIDIA GPU here \({name}\)"):
        find_gpu()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cudaErrorSystemNotReady", "start nvidia-fabricmanager"),
        ("cudaErrorECCUncorrectable", "check it with `nvidia-smi`"),
    ],
)
@pytest.mark.parametrize("call", ["cudaGetDeviceCount", "cudaGetDeviceProperties"])
def test_a_gpu_that_fails_is_not_reported_as_a_missing_one(gpu, monkeypatch, name, hint, call):
    error = gpu.cuda.cudaError_t[name]
    monkeypatch.setattr(gpu.cuda, call, lambda *_: (error, None))
    expected = f"the NVIDIA GPU cannot be used: CUDA: {name}: error {error.value}"
    with pytest.raises(MissingDependencyError, match=expected) as caught:
        find_gpu()
    assert not isinstance(caught.value, NoGpuError)
    assert caught.value.hint.startswith(hint)


def test_a_gpu_is_lost_if_an_error_stays(gpu, monkeypatch):
    assert lost_gpu() == ""
    illegal = gpu.cuda.cudaError_t.cudaErrorIllegalAddress
    monkeypatch.setattr(gpu.cuda, "cudaDeviceSynchronize", lambda: (illegal,))
    assert lost_gpu() == "CUDA: cudaErrorIllegalAddress: error 700"
    monkeypatch.setattr(gpu.cuda, "cudaDeviceSynchronize", lambda: (SimpleNamespace(value=900),))
    assert lost_gpu() == ""  # another thread captures a CUDA graph


@pytest.mark.parametrize("present", [False, True])
def test_without_cuda_python_the_install_command_is_given(present, tmp_path, monkeypatch):
    """Other packages of NVIDIA also install into the namespace `cuda`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    if present:
        (tmp_path / "cuda" / "pathfinder").mkdir(parents=True)
    assert (importlib.util.find_spec("cuda") is not None) is present
    assert gpu_or_none() is None
    with pytest.raises(MissingDependencyError, match="cuda-python is not installed") as caught:
        find_gpu()
    assert caught.value.hint == "pip install cuda-python"


@pytest.mark.gpu
def test_arrays_come_back_from_a_real_gpu_as_they_went():
    if gpu_or_none() is None:
        pytest.skip("needs a CUDA device")
    given = np.arange(1000, dtype=np.int64).reshape(10, 100)
    with DeviceArrays({"x": given.nbytes}) as arrays:
        arrays.upload("x", given)
        np.testing.assert_array_equal(arrays.download("x", (10, 100), np.int64), given)


def test_the_gpu_is_described_by_name_and_compute_capability(gpu, monkeypatch):
    monkeypatch.setattr("pipework.serve.engines.cuda._runtime", lambda: gpu.cuda)
    assert find_gpu() == Gpu(name="Fake L4", capability=89)


def test_a_failed_call_is_reported_with_the_name_of_the_error(gpu):
    error = gpu.cuda.cudaError_t.cudaErrorMemoryAllocation
    with pytest.raises(RuntimeError, match="CUDA: cudaErrorMemoryAllocation"):
        checked(gpu.cuda, (error, None))
    assert checked(gpu.cuda, (gpu.cuda.cudaError_t.cudaSuccess, 7)) == 7
    assert checked(gpu.cuda, (gpu.cuda.cudaError_t.cudaSuccess,)) is None
