"""Build a TensorRT engine from an ONNX graph; this needs no GPU with TensorRT-RTX.

The network is strongly typed: the types of the graph determine the precision, with TensorRT 10 and
11 and with TensorRT-RTX.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.errors import ConfigError
from pipework.export.convert.converter import ConvertedGraph, Converter
from pipework.export.convert.shape_profiles import shape_profiles
from pipework.export.rows.run_rows import RunRows
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineBuild, ShapeProfile
from pipework.run_folder.files import write_atomically
from pipework.serve.engines.cuda import Gpu
from pipework.serve.engines.tensorrt import TensorRt
from pipework.serve.engines.tensorrt_packages import (
    Flavour,
    builder_flavour,
    capabilities_of,
    collecting,
    dotted,
    gpu_or_none,
    load,
    target_of,
)
from pipework.train.data.disk_cache import cache_folder, ensure_folder

TURING = 75
SCRATCH_BYTES = 2 << 30  # maximum GPU scratch memory of a layer
T = TypeVar("T")


class TensorRtConverter(Converter):
    """Converts graphs to TensorRT engines; a graph is kept, because it runs on any machine."""

    runtime = TensorRt()
    int8_embeddings = False  # TensorRT's Gather does not support int8

    def convert(
        self, graph: ConvertedGraph, out: Path, run_rows: RunRows, progress: Progress
    ) -> EngineBuild:
        """Build an engine for the lengths of the dev rows, which determine the shape profiles.

        Raises:
            MissingDependencyError: no TensorRT package that builds engines is installed.
            ConfigError: TensorRT cannot read the graph or does not support a compute capability.
        """
        flavour = builder_flavour()
        gpu, trt = gpu_or_none(), load(flavour)
        capabilities: tuple[int, ...] = ()
        if flavour is Flavour.RTX:
            requested = run_rows.settings.capabilities
            if TURING in requested and has_float32_products(graph.path):
                requested = _without_turing(requested, progress)
            capabilities = _build_capabilities(requested, gpu, progress)
            gpu = None  # the build measures nothing on it
        builder = _NetworkBuilder(trt, capabilities)
        builder.read(graph.path)
        lengths_N = [len(row.encoding) for row in run_rows.dev]
        profiles = shape_profiles(builder.inputs, lengths_N, run_rows.manifest.input.max_length)
        builder.add_profiles(profiles)
        timings = None
        if gpu is not None:
            timings = cache_folder() / "tensorrt" / timings_name(builder.version, gpu)
        out.write_bytes(builder.serialize(progress, timings))
        built_with = graph.build.built_with | {flavour.value: builder.version}
        target = target_of(gpu, capabilities)
        changes = {"built_with": built_with, "profiles": profiles, "target": target}
        return graph.build.model_copy(update=changes)


def has_float32_products(path: Path) -> bool:
    """Return whether a graph multiplies matrices in float32: all do but those in float16."""
    graph = onnx.load(path).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    weights = (
        types.get(name) for node in graph.node if node.op_type == "MatMul" for name in node.input
    )
    return TensorProto.FLOAT16 not in types.values() or TensorProto.FLOAT in weights


def _without_turing(requested: tuple[int, ...], progress: Progress) -> tuple[int, ...]:
    """Return the other capabilities.

    Raises:
        ConfigError: there is no other.
    """
    reason = f"TensorRT-RTX has no float32 products for compute capability {dotted(TURING)}"
    others = tuple(capability for capability in requested if capability != TURING)
    if not others:
        raise ConfigError(
            reason, "use --precision fp16, or other capabilities: --set capabilities=[89]"
        )
    progress.note(f"{reason}: it is left out; fp16 engines include it")
    return others


def timings_name(version: str, gpu: Gpu) -> str:
    """Return the file name of the kernel timings of a GPU, whose name may contain a slash."""
    return quote(f"{version} {gpu.name}", safe=" ") + ".timings"


def _build_capabilities(
    requested: tuple[int, ...], gpu: Gpu | None, progress: Progress
) -> tuple[int, ...]:
    """Return the capabilities to build for, with the one of this machine's GPU if supported.

    Raises:
        ConfigError: TensorRT-RTX does not support a requested capability.
    """
    supported = capabilities_of(Flavour.RTX)
    for capability in requested:
        if capability not in supported:
            known = ", ".join(map(str, sorted(supported)))
            message = f"this TensorRT-RTX cannot build for compute capability {dotted(capability)}"
            raise ConfigError(message, f"supported (times ten): {known}")
    if gpu is not None and gpu.capability not in supported:
        here = f"{gpu.name} of compute capability {dotted(gpu.capability)}"
        progress.note(f"TensorRT-RTX cannot build for {here}: the engine is for other GPUs")
    local = {gpu.capability} & supported if gpu is not None else set()
    return tuple(sorted({*requested, *local}))


class _NetworkBuilder:
    """Builds an engine from an ONNX graph.

    Attributes:
        version: version of TensorRT.
        inputs: shapes of the network's inputs by name, with -1 for dynamic dimensions.
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
        # TF32 would round the factors of float32 products to 10 bits.
        self._config.clear_flag(trt.BuilderFlag.TF32)
        self._set_capabilities(capabilities)

    def _set_capabilities(self, capabilities: tuple[int, ...]) -> None:
        if not capabilities:
            return
        members = self._trt.ComputeCapability.__members__
        self._config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            self._config.set_compute_capability(members[f"SM{capability}"], index)

    def read(self, graph: Path) -> None:
        """Parse a graph, whose only output must be float32 logits."""
        parser = self._trt.OnnxParser(self._network, self._logger)
        if not parser.parse(without_eye_like(graph)):
            first = parser.get_error(0)
            node = f"{first.node_operator()} {first.node_name()}".strip() or "the graph"
            message = f"TensorRT cannot read {node}: {first.desc().splitlines()[0]}"
            raise ConfigError(message, "use another engine format: pipe export RUN --to onnx")
        network = self._network
        inputs = [network.get_input(number) for number in range(network.num_inputs)]
        self.inputs = {tensor.name: tuple(tensor.shape) for tensor in inputs}
        outputs = [network.get_output(number) for number in range(network.num_outputs)]
        if [(tensor.name, tensor.dtype) for tensor in outputs] != [("logits", self._trt.float32)]:
            names = ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in outputs)
            message = f"expected float32 logits as the only output of the graph, found {names}"
            raise ConfigError(message)

    def add_profiles(self, profiles: tuple[ShapeProfile, ...]) -> None:
        """Add the shape profiles of the engine."""
        for shapes in profiles:
            profile = self._builder.create_optimization_profile()
            for name in self.inputs:
                smallest, usual = shapes.smallest[name], shapes.usual[name]
                profile.set_shape(name, smallest, usual, shapes.largest[name])
            if self._config.add_optimization_profile(profile) < 0:
                raise self._build_error()

    def serialize(self, progress: Progress, timings: Path | None) -> bytes:
        """Build the engine; Ctrl-C stops the build at the next step.

        Args:
            progress: receives the build steps.
            timings: cache file of kernel timings, read and updated; None without a GPU, where
                the build measures nothing.
        """
        cache: Any = None if timings is None else timing_cache(self._config, timings, progress)
        with ExitStack() as stages:
            monitor = _monitor(self._trt, progress, stages)
            self._config.progress_monitor = monitor
            engine = _interruptible(
                lambda: self._builder.build_serialized_network(self._network, self._config),
                monitor.stop,
            )
        if engine is None:
            raise self._build_error()
        if timings is not None:
            write_atomically(timings, bytes(memoryview(cache.serialize())))
        return bytes(memoryview(engine))

    def _build_error(self) -> ConfigError:
        reason = self._logger.errors[-1] if self._logger.errors else "no reason was logged"
        return ConfigError(f"TensorRT {self.version} failed to build the engine: {reason}")


def timing_cache(config: Any, path: Path, progress: Progress) -> Any:  # noqa: ANN401
    """Return the kernel timings of a file after adding them to a build; empty if it is unusable."""
    ensure_folder(path.parent)
    if path.is_file():
        cache = config.create_timing_cache(path.read_bytes())
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return cache
        progress.note(f"TensorRT cannot use its timings in {path}: they are measured again")
    cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _monitor(trt: ModuleType, progress: Progress, stages: ExitStack) -> Any:  # noqa: ANN401
    """Return a monitor that reports TensorRT's steps and can stop the build between them.

    TensorRT calls it in its own thread; the stage of the build ends with `stages`.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._phase = ""
            self._running = True

        def stop(self) -> None:
            self._running = False

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            if parent is None:
                self._phase = name
                stages.enter_context(progress.stage("TensorRT", steps, "steps"))

        def step_complete(self, name: str, _step: int) -> bool:
            if name == self._phase:
                progress.advance(1)
            return self._running

        def phase_finish(self, _name: str) -> None:
            pass

    return Monitor()


def _interruptible(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run `work` in a thread, so that Ctrl-C is handled here and not inside native code."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(work).result()
        except KeyboardInterrupt:
            stop()
            raise


def without_eye_like(path: Path) -> bytes:
    """Return a graph that computes EyeLike (XLNet), which TensorRT reads with fixed shapes only.

    The element of row i and column j is 1 if i equals j.
    """
    model = onnx.load(path)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes += _diagonal(node) if node.op_type == "EyeLike" else [node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    content: bytes = model.SerializeToString()
    return content


def _diagonal(eye: NodeProto) -> Iterator[NodeProto]:
    """Yield nodes that compute the output of an EyeLike node without an offset."""
    name = eye.output[0]
    values = {field.name: helper.get_attribute_value(field) for field in eye.attribute}

    def constant(key: str, value: list[int] | int) -> NodeProto:
        array = numpy_helper.from_array(np.array(value, np.int64))
        return helper.make_node("Constant", [], [f"{name}/{key}"], value=array)

    def node(kind: str, inputs: list[str], output: str) -> NodeProto:
        names = [f"{name}/{key}" for key in inputs]
        return helper.make_node(kind, names, [f"{name}/{output}"])

    yield constant("0", 0)
    yield constant("1", 1)
    yield helper.make_node("Shape", [eye.input[0]], [f"{name}/shape"])
    for axis, other in (("0", "1"), ("1", "0")):
        yield constant(f"axis{axis}", [int(other)])
        yield node("Gather", ["shape", axis], f"size{axis}")
        yield node("Range", ["0", f"size{axis}", "1"], f"range{axis}")
        yield node("Unsqueeze", [f"range{axis}", f"axis{axis}"], f"index{axis}")
    yield node("Equal", ["index0", "index1"], "equal")
    dtype = values.get("dtype", TensorProto.FLOAT)
    yield helper.make_node("Cast", [f"{name}/equal"], [name], to=dtype)
