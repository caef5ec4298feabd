"""A GPU without a GPU: CUDA's calls on host memory, and TensorRT's on ONNX Runtime.

What is put on the stream waits until the stream is waited for, as on a real device, so that a
buffer that is written too early or read too early shows.
"""

import ctypes
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from pipework.data.examples import Example
from pipework.run_folder.engine_record import EngineBuild, Layout
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE as ROWS
from pipework.serve.engines import cuda
from pipework.serve.engines import tensorrt as module
from pipework.serve.engines.collate import Collate
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from tests.serve.conftest import TEXTS, encoded, reference_rows

VERSION = "1.7.1"
TYPES = {"tensor(int64)": np.dtype(np.int64), "tensor(float)": np.dtype(np.float32)}
Shapes = dict[str, tuple[int, ...]]
ENGINE = "engines/onnx"


class FakeCuda:
    """The calls of `cuda.bindings.runtime` that are used here."""

    class cudaError_t(Enum):  # noqa: N801  (as in CUDA)
        cudaSuccess = 0
        cudaErrorMemoryAllocation = 2
        cudaErrorStubLibrary = 34
        cudaErrorInsufficientDriver = 35
        cudaErrorNoDevice = 100
        cudaErrorECCUncorrectable = 214
        cudaErrorIllegalAddress = 700
        cudaErrorSystemNotReady = 802

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice="up", cudaMemcpyDeviceToHost="down")

    def __init__(self, name: str = "Fake L4", capability: int = 89, bytes_: int = 1 << 30) -> None:
        self._device = SimpleNamespace(
            name=name.encode(), major=capability // 10, minor=capability % 10
        )
        self._room = bytes_
        self.kept: dict[int, Any] = {}
        self.waiting: list[Callable[[], None]] = []

    def cudaGetDeviceCount(self):  # noqa: N802
        return self.cudaError_t.cudaSuccess, 1

    def cudaDeviceSynchronize(self):  # noqa: N802
        return (self.cudaError_t.cudaSuccess,)

    def cudaGetDeviceProperties(self, _device):  # noqa: N802
        return self.cudaError_t.cudaSuccess, self._device

    def cudaGetErrorName(self, error):  # noqa: N802
        return self.cudaError_t.cudaSuccess, error.name.encode()

    def cudaGetErrorString(self, error):  # noqa: N802
        return self.cudaError_t.cudaSuccess, f"error {error.value}".encode()

    def cudaMalloc(self, size):  # noqa: N802
        if size > self._room:
            return self.cudaError_t.cudaErrorMemoryAllocation, None
        self._room -= size
        buffer = ctypes.create_string_buffer(b"\xff" * size, size)
        self.kept[ctypes.addressof(buffer)] = buffer
        return self.cudaError_t.cudaSuccess, ctypes.addressof(buffer)

    cudaMallocHost = cudaMalloc

    def cudaFree(self, address):  # noqa: N802
        self._room += len(self.kept.pop(address))
        return (self.cudaError_t.cudaSuccess,)

    cudaFreeHost = cudaFree

    cudaStreamNonBlocking = 1

    def cudaStreamCreateWithFlags(self, _flags):  # noqa: N802
        return self.cudaError_t.cudaSuccess, 7

    def cudaStreamDestroy(self, _stream):  # noqa: N802
        return (self.cudaError_t.cudaSuccess,)

    def cudaMemcpyAsync(self, to, from_, size, _kind, _stream):  # noqa: N802
        self.waiting.append(lambda: ctypes.memmove(to, from_, size))
        return (self.cudaError_t.cudaSuccess,)

    def cudaStreamSynchronize(self, _stream):  # noqa: N802
        while self.waiting:
            self.waiting.pop(0)()
        return (self.cudaError_t.cudaSuccess,)


class FakeTensorRt:
    """The package, as far as it is used to run engines; a file names a graph and its profiles."""

    __version__ = VERSION
    TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")

    class ILogger:
        ERROR, INTERNAL_ERROR = "error", "internal error"

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.profiles: list[int] = []
        self.refusing = False

    @staticmethod
    def nptype(kind):
        return kind

    def Runtime(self, logger):  # noqa: N802
        return SimpleNamespace(deserialize_cuda_engine=lambda data: self._engine(data, logger))

    def _engine(self, data, logger):
        if not data.startswith(b"{"):
            logger.log(self.ILogger.ERROR, "magic tag does not match\nand more")
            return None
        return FakeEngine(json.loads(data), self._cuda, self)


class FakeEngine:
    """An engine that ONNX Runtime runs."""

    def __init__(self, plan: dict[str, Any], cuda: FakeCuda, trt: FakeTensorRt) -> None:
        self.session = ort.InferenceSession(plan["graph"], providers=["CPUExecutionProvider"])
        self.largest = plan["profiles"]
        self.cuda, self.trt = cuda, trt
        tensors = {one.name: one for one in self.session.get_inputs()}
        self.inputs = [*tensors]
        self._tensors = tensors | {one.name: one for one in self.session.get_outputs()}
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = len(self.largest)

    def get_tensor_name(self, number):
        return [*self._tensors][number]

    def get_tensor_mode(self, name):
        return "input" if name in self.inputs else "output"

    def get_tensor_dtype(self, name):
        return TYPES[self._tensors[name].type]

    def get_tensor_shape(self, name):
        return tuple(size if isinstance(size, int) else -1 for size in self._tensors[name].shape)

    def get_tensor_profile_shape(self, name, profile):
        largest = tuple(self.largest[profile][name])
        return tuple(1 for _ in largest), largest, largest

    def create_execution_context(self):
        return FakeContext(self)


class FakeContext:
    """Runs the graph on the data at the addresses when the stream executes it."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._profile = 0
        self._shapes: Shapes = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile, _stream):
        self._profile = profile
        self._shapes = {}
        return True

    def set_input_shape(self, name, shape):
        _, _, largest = self._engine.get_tensor_profile_shape(name, self._profile)
        self._shapes[name] = tuple(shape)
        return all(size <= most for size, most in zip(shape, largest, strict=True))

    def set_tensor_address(self, name, address):
        self._addresses[name] = address
        return address in self._engine.cuda.kept

    def get_tensor_shape(self, name):
        shape = self._engine.get_tensor_shape(name)
        return (self._shapes["input_ids"][0], *shape[1:])

    def execute_async_v3(self, _stream):
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        self._engine.trt.profiles.append(self._profile)
        self._engine.cuda.waiting.append(lambda: self._execute(shapes, addresses))
        return {*shapes} == {*self._engine.inputs} and not self._engine.trt.refusing

    def _execute(self, shapes: Shapes, addresses: dict[str, int]) -> None:
        feed = {}
        for name, shape in shapes.items():
            kind = self._engine.get_tensor_dtype(name)
            size = int(np.prod(shape)) * kind.itemsize
            feed[name] = np.frombuffer(ctypes.string_at(addresses[name], size), kind).reshape(shape)
        (logits,) = self._engine.session.run(["logits"], feed)
        ctypes.memmove(addresses["logits"], logits.tobytes(), logits.nbytes)


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """A fake GPU and TensorRT; `built` is the build record of an engine that fits both."""

    cuda: FakeCuda
    trt: FakeTensorRt
    built: EngineBuild

    def write(self, path: Path, graph: Path, profiles: list[Shapes]) -> Path:
        """Write an engine."""
        path.write_text(json.dumps({"graph": str(graph), "profiles": profiles}))
        return path


def collate(*, type_ids: bool = False, spans: bool = False) -> Collate:
    padding = Padding(pad_id=0, type_ids=type_ids)
    return Collate(layout=Layout.PADDED, padding=padding, spans=spans)


@pytest.fixture(scope="session")
def encodings(run: Path) -> list[Encoding]:
    """The encodings of TEXTS."""
    return encoded(run, [Example(text=text) for text in TEXTS])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU in place of that of the machine."""
    runtime = FakeCuda()
    trt = FakeTensorRt(runtime)
    monkeypatch.setattr(cuda, "_runtime", lambda: runtime)
    monkeypatch.setattr(module, "load", lambda _flavour: trt)
    target = "compute capabilities 8.6, 8.9"
    built = EngineBuild(opset=17, built_with={"tensorrt_rtx": VERSION}, target=target, profiles=())
    return FakeGpu(cuda=runtime, trt=trt, built=built)


@pytest.fixture
def front(run, tmp_path):
    """A run folder with the engine's logits as reference, and the folder of its tensor model."""
    front, beside = shutil.copytree(run, tmp_path / "front"), tmp_path / "front-engine"
    shutil.copytree(front / ENGINE, beside)
    manifest = read_manifest(front)
    (record,) = manifest.engines
    rows = reference_rows(front, 7)
    rows.write(front / ENGINE / ROWS)
    files = (record.files[0], record_file(front, front / ENGINE / ROWS))
    engine = record.model_copy(update={"files": files})
    write_manifest(front, manifest.model_copy(update={"engines": (engine,)}))
    (front / ENGINE / "model.onnx").unlink()
    return front, beside, rows
