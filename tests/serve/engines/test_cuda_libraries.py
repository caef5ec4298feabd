"""The libraries of ONNX Runtime's CUDA provider.

The last test needs an environment of its own with the wheels of NVIDIA (2.5 GB), and no GPU:

    python -m venv DIR && DIR/bin/pip install 'onnxruntime-gpu[cuda,cudnn]'
    ONNXRUNTIME_GPU_PYTHON=DIR/bin/python pytest tests/serve/engines/test_cuda_libraries.py
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from pipework.serve.engines import cuda_libraries
from pipework.serve.engines.cuda_libraries import DRIVER, load_cuda_libraries

NAMES = (
    "libcudart.so.13",
    "libcublasLt.so.13",
    "libcublas.so.13",
    "libnvrtc.so.13",
    "libcurand.so.10",
    "libcufft.so.12",
    "libcudnn.so.9",
)


class Linker:
    """A fake of the system's linker: opens the paths in `present`, and records all others."""

    def __init__(self, present):
        self.present = set(present)
        self.opened = []

    def __call__(self, path, mode=ctypes.DEFAULT_MODE):
        del mode
        if path.endswith(str(cuda_libraries.PROVIDER)):
            message = f"{DRIVER}: cannot open shared object file: No such file or directory"
            raise OSError(message)
        if path not in self.present:
            message = f"{path}: cannot open shared object file: No such file or directory"
            raise OSError(message)
        self.opened.append(path)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of installed packages in which wheels of NVIDIA and torch have some libraries."""
    files = [
        *(f"nvidia/cu13/lib/{name}" for name in NAMES[:3]),
        *(f"torch/lib/{name}" for name in NAMES[2:5]),
        f"nvidia/cudnn/lib/{NAMES[6]}",
    ]
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("nvidia", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(ort, "cuda_version", "13.0", raising=False)
    return tmp_path


def test_the_order_is_system_then_wheels_of_nvidia_then_torch(packages, monkeypatch):
    linker = Linker([NAMES[0], *map(str, packages.rglob("*.so*"))])
    monkeypatch.setattr(ctypes, "CDLL", linker)
    assert load_cuda_libraries() == (NAMES[5], DRIVER)
    assert [path.removeprefix(f"{packages}/") for path in linker.opened] == [
        NAMES[0],
        f"nvidia/cu13/lib/{NAMES[1]}",
        f"nvidia/cu13/lib/{NAMES[2]}",
        f"torch/lib/{NAMES[3]}",
        f"torch/lib/{NAMES[4]}",
        f"nvidia/cudnn/lib/{NAMES[6]}",
    ]


@pytest.mark.parametrize("regular", [False, True])
def test_libraries_are_found_wherever_packages_are_installed(tmp_path, monkeypatch, regular):
    """The first folder is a user site, the second that of `pip install --target`."""
    folders = [tmp_path / name / "nvidia" for name in ("user", "target")]
    for number, name in enumerate(NAMES):
        library = folders[number % 2] / f"wheel{number}/lib" / name
        library.parent.mkdir(parents=True)
        library.touch()
    if regular:  # then Python finds no other folder of the package
        (folders[0] / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(folder.parent) for folder in folders])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "target/onnxruntime/__init__.py"))
    monkeypatch.setattr(ort, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", Linker(map(str, tmp_path.rglob("*.so*"))))
    assert load_cuda_libraries() == (DRIVER,)


def test_only_the_driver_is_missing_in_a_complete_installation(packages, monkeypatch):
    del packages
    monkeypatch.setattr(ctypes, "CDLL", Linker(NAMES))
    assert load_cuda_libraries() == (DRIVER,)


def test_a_library_that_nobody_has_is_named_once(packages, monkeypatch):
    linker = Linker([*NAMES[:4], *NAMES[5:]])
    (packages / f"torch/lib/{NAMES[4]}").unlink()
    monkeypatch.setattr(ctypes, "CDLL", linker)
    assert load_cuda_libraries() == (NAMES[4], DRIVER)


def test_with_the_wheels_of_nvidia_and_without_torch_only_the_driver_is_missing():
    python = os.environ.get("ONNXRUNTIME_GPU_PYTHON")
    if python is None:
        pytest.skip("onnxruntime-gpu is absent: set ONNXRUNTIME_GPU_PYTHON to a Python with it")
    program = "\n".join(
        (
            "import ctypes, importlib.util, json, onnxruntime",
            f"spec = importlib.util.spec_from_file_location('m', {cuda_libraries.__file__!r})",
            "module = importlib.util.module_from_spec(spec)",
            "spec.loader.exec_module(module)",
            "missing = module.load_cuda_libraries()",
            "for name in module._names(onnxruntime.cuda_version): ctypes.CDLL(name)",
            "maps = open('/proc/self/maps').read()",
            "print(json.dumps([missing, importlib.util.find_spec('torch') is None, maps]))",
        )
    )
    done = subprocess.run(
        [python, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=Path("/")
    )
    missing, without_torch, maps = json.loads(done.stdout)
    assert without_torch
    assert missing in ([], [DRIVER])
    assert all(name in maps for name in ("libcublasLt.so", "libcudnn.so", "libcurand.so"))
