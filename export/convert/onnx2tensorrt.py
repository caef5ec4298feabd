"""An ONNX graph becomes a TensorRT engine; whether it can be run here is another question.

The network is strongly typed: each tensor has the type that the graph gives it, so precision is
decided in the graph, by TensorRT 10 and 11 and by TensorRT-RTX alike.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pipework.errors import ConfigError
from pipework.export.convert.shape_profiles import profiles
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress
from pipework.run_folder.engine_record import Profile, TensorRt
from pipework.run_folder.files import write_atomically
from pipework.serve.engines.cuda import Gpu
from pipework.serve.engines.tensorrt_packages import (
    Flavour,
    builder_flavour,
    collecting,
    gpu_or_none,
    in_words,
    load,
    target_of,
)
from pipework.train.data.disk_cache import cache_folder, made

SCRATCH_BYTES = 2 << 30  # the most memory of the GPU that one layer may take beside its answer
T = TypeVar("T")


def onnx_to_tensorrt(graph: Path, out: Path, subject: Subject, progress: Progress) -> TensorRt:
    """Write `out` and return what it was built for.

    Args:
        graph: a graph of `checkpoint_to_onnx`, or one made of it, padded or packed.
        out: where the engine is written.
        subject: the lengths of its dev rows give the profiles.
        progress: hears of the steps.

    Raises:
        MissingDependencyError: nothing that builds engines is installed.
        ConfigError: the graph cannot be read, or there is no such compute capability.
    """
    flavour = builder_flavour()
    gpu, trt = gpu_or_none(), load(flavour)
    capabilities: tuple[int, ...] = ()
    if flavour is Flavour.RTX:
        capabilities = _aims(trt, subject.settings.capabilities, gpu)
        gpu = None  # it is not asked, and nothing is measured on it
    building = _Building(trt, capabilities)
    building.read(graph)
    lengths_N = [len(row.encoding) for row in subject.dev]
    made_for = profiles(building.inputs, lengths_N, subject.manifest.input.max_length)
    building.add(made_for)
    timings = None
    if gpu is not None:
        timings = cache_folder() / "tensorrt" / f"{building.version} {gpu.name}.timings"
    out.write_bytes(building.serialized(progress, timings))
    return TensorRt(
        flavour=flavour,
        version=building.version,
        target=target_of(gpu, capabilities),
        profiles=made_for,
    )


def _aims(trt: ModuleType, asked: tuple[int, ...], gpu: Gpu | None) -> tuple[int, ...]:
    """Return the capabilities to build for; that of a GPU that is here is among them.

    Raises:
        ConfigError: one that is asked for is not offered.
    """
    offered = {int(one[2:]) for one in trt.ComputeCapability.__members__ if one.startswith("SM")}
    for capability in asked:
        if capability not in offered:
            known = ", ".join(map(str, sorted(offered)))
            message = f"no engine can be built for compute capability {in_words(capability)}"
            raise ConfigError(message, f"this TensorRT-RTX knows: {known}")
    here = {gpu.capability} & offered if gpu is not None else set()
    return tuple(sorted({*asked, *here}))


class _Building:
    """A network on its way to an engine.

    Attributes:
        version: of TensorRT.
        inputs: the shapes of the network's inputs by name, with -1 for what varies.
    """

    def __init__(self, trt: ModuleType, capabilities: tuple[int, ...]) -> None:
        self.version: str = trt.__version__
        self.inputs: dict[str, tuple[int, ...]] = {}
        self._trt = trt
        self._logger = collecting(trt)
        self._builder = trt.Builder(self._logger)
        typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self._network = self._builder.create_network(typed)
        self._config = self._builder.create_builder_config()
        self._config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, SCRATCH_BYTES)
        # Else float32 products would be rounded to 10 bits before they are multiplied.
        self._config.clear_flag(trt.BuilderFlag.TF32)
        self._aim(capabilities)

    def _aim(self, capabilities: tuple[int, ...]) -> None:
        if not capabilities:
            return
        named = self._trt.ComputeCapability.__members__
        self._config.num_compute_capabilities = len(capabilities)
        for place, capability in enumerate(capabilities):
            self._config.set_compute_capability(named[f"SM{capability}"], place)

    def read(self, graph: Path) -> None:
        """Parse a graph; its one output is float32 logits."""
        parser = self._trt.OnnxParser(self._network, self._logger)
        if not parser.parse_from_file(str(graph)):
            first = parser.get_error(0)
            node = f"{first.node_operator()} {first.node_name()}".strip() or "the graph"
            message = f"TensorRT cannot read {node}: {first.desc().splitlines()[0]}"
            raise ConfigError(message, "take an engine of another kind: pipe export RUN --to onnx")
        network = self._network
        given = [network.get_input(number) for number in range(network.num_inputs)]
        self.inputs = {one.name: tuple(one.shape) for one in given}
        outputs = [network.get_output(number) for number in range(network.num_outputs)]
        if [(one.name, one.dtype) for one in outputs] != [("logits", self._trt.float32)]:
            found = ", ".join(f"{one.name} {one.dtype}" for one in outputs)
            message = f"TensorRT reads {found} as the outputs; expected logits in float32"
            raise ConfigError(message)

    def add(self, made_for: tuple[Profile, ...]) -> None:
        """Set the shapes that the engine is made for."""
        for one in made_for:
            profile = self._builder.create_optimization_profile()
            for name in self.inputs:
                profile.set_shape(name, one.smallest[name], one.usual[name], one.largest[name])
            if self._config.add_optimization_profile(profile) < 0:
                raise self._refusal()

    def serialized(self, progress: Progress, timings: Path | None) -> bytes:
        """Build the engine; Ctrl-C ends it at the next step.

        Args:
            progress: hears of the steps.
            timings: a file of kernels' measured times, read and written; None where nothing is
                measured, as where there is no GPU.
        """
        cache = self._timings(timings)
        monitor = _monitor(self._trt, progress)
        self._config.progress_monitor = monitor
        engine = _interruptible(
            lambda: self._builder.build_serialized_network(self._network, self._config),
            monitor.stop,
        )
        progress.end()
        if engine is None:
            raise self._refusal()
        if timings is not None:
            write_atomically(timings, bytes(memoryview(cache.serialize())))
        return bytes(memoryview(engine))

    def _timings(self, path: Path | None) -> Any:  # noqa: ANN401  (a class of the package)
        if path is None:
            return None
        made(path.parent)
        cache = self._config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
        self._config.set_timing_cache(cache, ignore_mismatch=False)
        return cache

    def _refusal(self) -> ConfigError:
        reason = self._logger.errors[-1] if self._logger.errors else "it does not say why"
        return ConfigError(f"TensorRT {self.version} built no engine: {reason}")


def _monitor(trt: ModuleType, progress: Progress) -> Any:  # noqa: ANN401  (a class of the package)
    """Return what hears of TensorRT's steps and can end the build between two of them."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._whole = ""
            self._going = True

        def stop(self) -> None:
            self._going = False

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            if parent is None:
                self._whole = name
                progress.begin("TensorRT", steps, "steps")

        def step_complete(self, name: str, _step: int) -> bool:
            if name == self._whole:
                progress.advance(1)
            return self._going

        def phase_finish(self, _name: str) -> None:
            pass

    return Monitor()


def _interruptible(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Do work in a thread, so that Ctrl-C is heard here and not in the middle of foreign code."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(work).result()
        except KeyboardInterrupt:
            stop()
            raise
