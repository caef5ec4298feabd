import importlib.metadata
import re
import subprocess
import sys

import onnxruntime
import pytest

from pipework.errors import MissingDependencyError
from pipework.export import doctor
from pipework.export.doctor import diagnose
from pipework.export.plan import AUTO, select_variants
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import cuda, cuda_libraries, openvino, tensorrt
from pipework.serve.engines import onnxruntime as runtime
from pipework.serve.engines import runtime as base
from pipework.serve.engines.runtime import Usability
from pipework.serve.engines.tensorrt_packages import gpu_or_none
from pipework.terminal import show_diagnosis


def by_name(parts):
    return {part.name: part for part in parts}


@pytest.fixture(scope="module")
def here():
    return diagnose()


def test_all_stages_are_usable_after_the_installation_for_development(here):
    stages = by_name(here.stages)
    names = {"train", "tune", "export", "bench", "triton", "traces"}
    assert {*names, "tritonserver"} == {*stages}
    assert {stages[name].usable for name in names} == {Usability.YES}
    assert stages["train"].details.startswith("torch 2.")


def test_the_usable_engines_are_those_that_auto_builds(here, trained_run):
    variants = select_variants(read_manifest(trained_run), AUTO, None, None)
    built = {f"{variant.format} {variant.precision}" for variant in variants}
    usable = {part.name for part in here.engines if part.usable is Usability.YES}
    slow = {part.name for part in here.engines if part.usable is Usability.SLOW}
    assert usable <= built <= usable | slow


@pytest.mark.skipif(gpu_or_none() is not None, reason="there is a GPU here")
def test_without_a_gpu_nothing_is_offered_to_install_for_it(here):
    gpu = by_name(here.devices)["gpu"]
    assert (gpu.usable, gpu.hint) == (Usability.NO, None)
    assert gpu.details.startswith("there is no NVIDIA GPU here")


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch, capsys):
    installed = importlib.metadata.version

    def version(name):
        if name in {"torch", "onnx"}:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, openvino.__name__)
    found = diagnose()
    stages, engines = by_name(found.stages), by_name(found.engines)
    assert stages["train"].details == "not installed: torch"
    assert stages["export"].details == "not installed: onnx, torch"
    assert stages["export"].hint == "pip install 'pipework[export]'"
    assert engines["openvino int8"].details == "openvino is required and not installed"
    assert engines["openvino int8"].hint == "pip install 'pipework[cpu]'"
    assert engines["onnx fp32"].usable is Usability.YES
    show_diagnosis(found)
    shown = capsys.readouterr().out
    assert "for export: pip install 'pipework[export]'" in shown
    # Without bf16 instructions, bf16 has a hint of its own.
    names = "openvino fp32, (openvino bf16, )?openvino int8"
    assert re.search(rf"for {names}: pip install 'pipework\[cpu\]'", shown)


def test_libraries_of_cuda_that_are_missing_are_named(monkeypatch):
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    missing = ["libcudnn.so.9", cuda_libraries.DRIVER]
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: tuple(missing))
    part = by_name(diagnose().engines)["onnx fp32"]
    assert part.usable is Usability.NO
    assert part.details.endswith("does not find libcudnn.so.9")
    missing.remove("libcudnn.so.9")
    assert by_name(diagnose().engines)["onnx fp32"].usable is Usability.YES


def test_an_engine_that_the_server_does_not_open_is_not_usable(monkeypatch):
    def find_gpu():
        message = "cuda-python is not installed"
        raise MissingDependencyError(message, "pip install cuda-python")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(runtime, "find_gpu", find_gpu)
    part = by_name(diagnose().engines)["onnx fp32"]
    assert (part.usable, part.hint) == (Usability.NO, "pip install cuda-python")


def test_a_driver_that_is_too_old_for_the_package_is_reported(monkeypatch, tmp_path):
    gpu = cuda.Gpu(name="Fake L4", capability=89)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(runtime, "find_gpu", lambda: gpu)
    monkeypatch.setattr(doctor, "find_gpu", lambda: gpu)
    monkeypatch.setattr(cuda, "NVIDIA_VERSION", tmp_path / "version")
    (tmp_path / "version").write_text("570.86.15\n")
    report = diagnose()
    assert by_name(report.devices)["gpu"].details.endswith("8.9, driver 570.86.15")
    part = by_name(report.engines)["onnx fp32"]
    assert part.usable is Usability.NO
    assert part.details == "CUDA 13 needs the NVIDIA driver 580 or later, found 570.86.15"
    assert part.hint.endswith("pip install 'pipework[cuda12]'")


def test_a_broken_torch_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    part = by_name(diagnose().stages)["train"]
    assert part.usable is Usability.NO
    assert part.details.startswith("torch cannot be imported: ")


def test_a_broken_runtime_is_reported(monkeypatch):
    def broken():
        message = "libonnxruntime.so: wrong ELF class"
        raise ImportError(message)

    monkeypatch.setattr(onnxruntime, "get_available_providers", broken)
    part = by_name(diagnose().engines)["onnx fp32"]
    assert part.usable is Usability.NO
    assert part.details == "onnx cannot be imported: libonnxruntime.so: wrong ELF class"


def test_slow_precisions_are_marked(monkeypatch):
    monkeypatch.setattr(base, "sums_int8", lambda: False)
    monkeypatch.setattr(openvino, "has_bf16", lambda: False)
    engines = by_name(diagnose().engines)
    assert engines["onnx int8"].usable is Usability.SLOW
    assert engines["openvino int8"].usable is Usability.SLOW
    assert engines["openvino bf16"].usable is Usability.NO
    assert "avx512_bf16 or amx_bf16" in engines["openvino bf16"].details


def test_tensorrt_without_a_builder_is_reported_with_the_install_command(monkeypatch):
    def absent():
        message = "no package that builds"
        raise MissingDependencyError(message, "pip install 'pipework[tensorrt-rtx]'")

    monkeypatch.setattr(tensorrt, "builder_flavour", absent)
    part = by_name(diagnose().engines)["tensorrt fp16"]
    assert (part.usable, part.hint) == (Usability.NO, "pip install 'pipework[tensorrt-rtx]'")


def test_the_command_loads_torch_only_in_order_to_examine_it():
    program = (
        "import sys, pipework.export.doctor, pipework.terminal; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
