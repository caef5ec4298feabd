"""Engine for TensorRT and TensorRT-RTX, on a machine with an NVIDIA GPU.

A call uses the smallest profile of the engine that its shapes fit, so that short texts do not have
the cost of long texts. Inputs are sorted by length before they are cut into calls for this reason.

Shapes: N inputs, C classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pipework.errors import ConfigError, MissingDependencyError, RunFolderError
from pipework.run_folder.engine_record import EngineBuild, EngineRecord, Precision, Variant
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits, check_names
from pipework.serve.engines.collate import Collate, InputFeed
from pipework.serve.engines.cuda import DeviceArrays, find_gpu
from pipework.serve.engines.runtime import Runtime, TritonForm, Usability
from pipework.serve.engines.tensorrt_packages import (
    NO_PACKAGE,
    REBUILD,
    Flavour,
    builder_flavour,
    capabilities_of,
    check_fits,
    collecting,
    fits_here,
    flavour_of,
    gpu_or_none,
    load,
)
from pipework.text.encoding import Encoding

Shape = tuple[int, ...]
Range = tuple[Shape, Shape]  # the smallest and the largest shape of an input


class TensorRt(Runtime):
    """TensorRT and TensorRT-RTX: engines for an NVIDIA GPU, or for compute capabilities."""

    format = "tensorrt"
    converter = "pipework.export.convert.onnx2tensorrt:TensorRtConverter"
    model_file = "model.engine"
    extra = "gpu"
    precisions = (Precision.FP32, Precision.FP16, Precision.INT8)
    triton = TritonForm(backend="tensorrt", platform="tensorrt_plan", model_file="model.plan")

    def needs_gpu(self, variant: Variant) -> bool:
        """Return True."""
        del variant
        return True

    def examine(self, precision: Precision) -> tuple[Usability, str]:
        """Return the package that builds engines, and whether they run here."""
        del precision
        flavour = builder_flavour()
        details = f"{flavour} {load(flavour).__version__}"
        if _builds_for_this_gpu():
            return Usability.YES, details
        return Usability.BUILD_ONLY, f"{details} builds engines for other machines"

    def local_precisions(self) -> tuple[Precision, ...]:
        """Return all precisions on a machine with a GPU and a package that builds for it."""
        with suppress(MissingDependencyError):  # neither package can build
            if _builds_for_this_gpu():
                return self.precisions
        return ()

    def open(
        self,
        path: Path,
        variant: Variant,
        collate: Collate,
        built: EngineBuild | None,
        threads: int,
    ) -> CollatedEngine:
        """Open an engine with the package that built it."""
        del variant, threads
        if built is None:
            message = f"{path}: {NO_PACKAGE}"
            raise RunFolderError(message, REBUILD)
        return TensorRtEngine(path, collate, built)

    def fits_here(self, built: EngineBuild) -> bool:
        """Return whether this machine has the TensorRT and the GPU of an engine."""
        return fits_here(built)

    def check_converter(self) -> None:
        """Check that a package that builds engines is installed."""
        builder_flavour()

    def check_triton(self, record: EngineRecord) -> None:
        """Check that TensorRT built an engine: Triton has no backend for TensorRT-RTX."""
        flavour = flavour_of(record.built)
        if flavour is not Flavour.TENSORRT:
            message = (
                f"engine {record.name} was built by {flavour}, but Triton's backend needs tensorrt"
            )
            hint = "build it with tensorrt, or use --set triton.backend=onnxruntime"
            raise ConfigError(message, hint)


def _builds_for_this_gpu() -> bool:
    """Return whether there is a GPU that the installed package builds engines for."""
    gpu, flavour = gpu_or_none(), builder_flavour()
    return gpu is not None and gpu.capability in (capabilities_of(flavour) or {gpu.capability})


class TensorRtEngine(CollatedEngine):
    """Engine for a serialized TensorRT engine. Not thread-safe."""

    def __init__(self, path: Path, collate: Collate, built: EngineBuild) -> None:
        """Deserialize the engine.

        Raises:
            NoGpuError: this machine has no GPU.
            MissingDependencyError: that TensorRT package is not installed.
            RunFolderError: the engine is for another version or GPU, or not an engine.
        """
        self._arrays: DeviceArrays | None = None
        self._gpu = find_gpu()
        trt = load(flavour_of(built))
        check_fits(built, trt.__version__, self._gpu)
        try:
            with ExitStack() as on_error:
                on_error.callback(self.close)
                self._open(path, collate, trt)
                on_error.pop_all()
        except (RuntimeError, ValueError) as error:
            message = f"{path} is not a usable TensorRT engine: {str(error).splitlines()[0]}"
            raise RunFolderError(message, REBUILD) from error

    def _open(self, path: Path, collate: Collate, trt: ModuleType) -> None:
        self._logger = collecting(trt)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._checked_object(
            self._runtime.deserialize_cuda_engine(path.read_bytes())
        )
        names = [self._engine.get_tensor_name(n) for n in range(self._engine.num_io_tensors)]
        is_input = trt.TensorIOMode.INPUT
        self._inputs = [name for name in names if self._engine.get_tensor_mode(name) == is_input]
        check_names({*self._inputs}, {*names} - {*self._inputs}, collate)
        self._dtypes = {name: trt.nptype(self._engine.get_tensor_dtype(name)) for name in names}
        self._profiles = [
            self._ranges(number) for number in range(self._engine.num_optimization_profiles)
        ]
        index = self._engine.get_tensor_shape("text_index") if "text_index" in names else (0, 1)
        counting = "text_index" if "text_index" in names else "input_ids"  # by its first dimension
        self._texts = max(ranges[counting][1][0] for ranges in self._profiles)
        self._context = self._checked_object(self._engine.create_execution_context())
        self._profile = 0
        self._arrays = DeviceArrays(self._sizes())
        super().__init__(replace(collate, first_only=index[1] == 1, whole=True))

    def _checked_object(self, result: Any) -> Any:  # noqa: ANN401  (an object of TensorRT)
        if result is None:  # TensorRT returns None on failure and logs the reason
            raise ValueError("; ".join(self._logger.errors) or "TensorRT gave no reason")
        return result

    def _ranges(self, profile: int) -> dict[str, Range]:
        ranges = {}
        for name in self._inputs:
            smallest, _, largest = self._engine.get_tensor_profile_shape(name, profile)
            ranges[name] = (tuple(smallest), tuple(largest))
        return ranges

    def _sizes(self) -> dict[str, int]:
        """Return the most bytes of each array, over all profiles."""
        shapes = {
            name: max((profile[name][1] for profile in self._profiles), key=np.prod)
            for name in self._inputs
        }
        shapes["logits"] = (self._texts, self._engine.get_tensor_shape("logits")[1])
        return {
            name: int(np.prod(shape)) * np.dtype(self._dtypes[name]).itemsize
            for name, shape in shapes.items()
        }

    @property
    def processor(self) -> str:
        """Name of the GPU."""
        return self._gpu.name

    @property
    def on_gpu(self) -> bool:
        """Always."""
        return True

    def learn_costs(self, longest: int) -> None:
        """Do nothing: the profiles of the engine determine the calls."""

    def _feeds(self, encodings: Sequence[Encoding]) -> Iterator[InputFeed]:
        order = sorted(range(len(encodings)), key=lambda row: len(encodings[row]))
        for start in range(0, len(order), self._texts):
            rows = order[start : start + self._texts]
            for feed in super()._feeds([encodings[row] for row in rows]):
                yield replace(feed, rows=[rows[index] for index in feed.rows])

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        device, context = self._arrays, self._context
        if device is None:
            message = "the engine is closed"
            raise RuntimeError(message)
        profile = fitting(self._profiles, {name: array.shape for name, array in arrays.items()})
        if profile != self._profile:
            _checked(context.set_optimization_profile_async(profile, device.stream), "profile")
            self._profile = profile
        for name, array in arrays.items():
            device.upload(name, array.astype(self._dtypes[name], copy=False))
            _checked(context.set_input_shape(name, array.shape), name)
            _checked(context.set_tensor_address(name, device.address(name)), name)
        _checked(context.set_tensor_address("logits", device.address("logits")), "logits")
        shape = tuple(context.get_tensor_shape("logits"))
        _checked(context.execute_async_v3(device.stream), "execution")
        dtype = self._dtypes["logits"]
        return lambda: np.asarray(device.download("logits", shape, dtype), np.float32)

    def close(self) -> None:
        """Free the engine and its memory on the GPU. Closing twice is allowed."""
        self._context = None
        self._engine = None
        self._runtime = None
        if self._arrays is not None:
            self._arrays.close()


def fitting(profiles: Sequence[Mapping[str, Range]], shapes: Mapping[str, Shape]) -> int:
    """Return the index of the first profile that fits; profiles are ordered by size.

    Raises:
        ValueError: no profile fits.
    """
    for number, ranges in enumerate(profiles):
        if all(_within(shapes[name], range_) for name, range_ in ranges.items()):
            return number
    listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    message = f"no profile of the engine takes {listed}"
    raise ValueError(message)


def _within(shape: Shape, ranges: Range) -> bool:
    return all(
        low <= size <= high for low, size, high in zip(ranges[0], shape, ranges[1], strict=True)
    )


def _checked(done: bool, what: str) -> None:
    if not done:
        message = f"TensorRT rejected {what}"
        raise RuntimeError(message)
