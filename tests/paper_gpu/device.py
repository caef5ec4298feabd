"""Runs Python functions on a paper GPU: ONNX Runtime's CUDA provider on stubs of CUDA's libraries.

`make paper-gpu` installs the provider and CUDA's headers into `.paper-gpu`. The stubs are compiled
from `cuda_stub.c` for each run of the tests.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = ROOT / ".paper-gpu"
PROVIDER = PACKAGES / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
HEADERS = PACKAGES / "nvidia" / "cu13" / "include"
PREFIXES = ("cu", "__cuda")  # of CUDA's functions
CUDNN = re.compile(rb"\0(cudnn[A-Z]\w+)(?=\0)")  # functions that the provider looks up by name
# Each library has all functions. Those of cuDNN do nothing, so that convolutions cannot be opened.
LIBRARIES = (
    *("libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"),
    *("libcurand.so.10", "libnvrtc.so.13", "libcufft.so.12", "libcudnn.so.9"),
)
# TensorRT's libraries of `tensorrt_stub.c`, with the bindings of each version.
TENSORRT = {10: PACKAGES / "tensorrt-10", 11: PACKAGES}
PARTS = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
PROGRAM = """
import json, sys
from pkgutil import resolve_name
print(json.dumps(resolve_name(sys.argv[1])(*json.loads(sys.argv[2]))))
"""


def missing() -> str:
    """Return why there is no paper GPU here; empty if there is one."""
    if not (PACKAGES / "ready").is_file():
        return "the environment of make paper-gpu is absent"
    absent = [name for name in ("cc", "nm") if shutil.which(name) is None]
    return f"{' and '.join(absent)} are absent" if absent else ""


@dataclass(frozen=True, kw_only=True)
class PaperGpu:
    """The folder with the compiled libraries."""

    folder: Path

    @classmethod
    def compile(cls, folder: Path) -> "PaperGpu":
        """Compile the libraries to `folder`."""
        source = folder / "cuda.c"
        text = (HERE / "cuda_stub.c").read_text(encoding="utf-8")
        others = (
            name for name in _imported() if f" {name}(" not in text and f"*{name}(" not in text
        )
        functions = "\n".join(f"int {name}(void) {{ return 0; }}" for name in others)
        source.write_text(f"{text}\n{functions}\n", encoding="utf-8")
        command = ("cc", "-w", "-O1", "-shared", "-fPIC", "-I", HEADERS, source)
        for name in LIBRARIES:
            subprocess.run([*command, f"-Wl,-soname,{name}", "-o", folder / name], check=True)
        command = ("cc", "-O1", "-shared", "-fPIC", HERE / "tensorrt_stub.c")
        for name in (f"lib{part}.so.{version}" for part in PARTS for version in TENSORRT):
            subprocess.run([*command, f"-Wl,-soname,{name}", "-o", folder / name], check=True)
        bindings = folder / "cuda" / "bindings"  # in place of cuda-python
        bindings.mkdir(parents=True)
        (bindings / "__init__.py").touch()
        shutil.copyfile(HERE / "cuda_runtime.py", bindings / "runtime.py")
        return cls(folder=folder)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a process with the GPU."""
        paths = (PACKAGES, self.folder, ROOT)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "LD_LIBRARY_PATH": str(self.folder),
            "PAPER_GPU_LOG": str(self.folder / "log"),
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return environment

    def call(self, function: str, *arguments: object) -> object:
        """Return the result of a function, `package.module:name`, in a process with the GPU.

        The arguments and the result are values of JSON.
        """
        command: Sequence[str] = (sys.executable, "-c", PROGRAM, function, json.dumps(arguments))
        done = subprocess.run(
            command, env=self.environment(), check=False, capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


def _imported() -> list[str]:
    """Return the names of the functions of CUDA's libraries that the provider uses."""
    command = ("nm", "-D", "--undefined-only", PROVIDER)
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names = (line.split()[-1].partition("@")[0] for line in lines)
    looked_up = (name.decode() for name in CUDNN.findall(PROVIDER.read_bytes()))
    return sorted({*looked_up, *(name for name in names if name.startswith(PREFIXES))})
