"""Build the files of one engine from a checkpoint."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime as ort

from pipework.errors import FULL, ConfigError, RunFolderError
from pipework.export.convert.checkpoint2onnx import EXPORTER, OPSET, checkpoint_to_onnx
from pipework.export.convert.onnx2fp16 import onnx_to_fp16
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.export.convert.onnx2tensorrt import onnx_to_tensorrt
from pipework.export.quantize.onnx2int8 import LayerPrecisions, onnx_to_int8
from pipework.export.rows.run_rows import RunRows, graph_feeds
from pipework.progress import Progress
from pipework.run_folder.engine_record import (
    EngineFormat,
    Precision,
    TensorRt,
    Variant,
)
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines import MODELS
from pipework.serve.engines.cuda import Gpu
from pipework.serve.engines.onnxruntime import cuda_gpu

# Runtimes match subgraphs by their structure, so another exporter, opset or version can silently
# lose a fusion and with it speed.

# Weights in a separate file: graphs over 2 GB cannot be written otherwise.
EXTERNAL_WEIGHTS = "session.optimized_model_external_initializers_file_name"
# The CUDA kernel of MatMulInteger reads int8 only, and the layers with dynamic scales read uint8:
# https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md
WITHOUT_CUDA_KERNEL = ("MatMulInteger",)
COPIES, MB = 2, 10**6  # of the weights on the disk: a graph, and the same graph with fusions
ERRORS_ONLY = 3  # log level; hides the warning that the optimised graph is machine-specific


def count_fusions(graph: Path) -> dict[str, int]:
    """Return the count of each fused operator that onnxruntime adds to the graph on a CPU."""
    with tempfile.TemporaryDirectory(dir=graph.parent, prefix="optimised-") as folder:
        optimised = Path(folder) / "graph.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry(EXTERNAL_WEIGHTS, "weights.bin")
        options.log_severity_level = ERRORS_ONLY
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        after = _operators(optimised)
    before = _operators(graph)
    return {name: after[name] for name in sorted(after) if name not in before}


def lost_fusions(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return a line for each operator with fewer fusions than before: its old and new count."""
    return [
        f"{name} {count} -> {now.get(name, 0)}"
        for name, count in before.items()
        if now.get(name, 0) < count
    ]


def cuda_warning(graph: Path, gpu: Gpu | None) -> str | None:
    """Return a warning about nodes of a graph that onnxruntime does not compute on a GPU."""
    counts = _operators(graph)
    nodes = " and ".join(f"{counts[name]} {name}" for name in WITHOUT_CUDA_KERNEL if counts[name])
    if gpu is None or not nodes:
        return None
    return (
        f"onnxruntime has no CUDA kernel for {nodes} nodes: {gpu.name} waits for the CPU; "
        "use --precision fp16, or --to tensorrt --precision int8"
    )


def _operators(graph: Path) -> Counter[str]:
    nodes = onnx.load(graph, load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """Metadata of a built engine; its files are in the folder passed to the builder.

    Attributes:
        built_with: versions of the packages that built the engine.
        opset: opset of the ONNX graph.
        fusions: fusions that onnxruntime finds in the ONNX graph, also if another runtime
            runs it; see `pipework.export.build`.
        layers: precisions of the layers.
        tensorrt: build record of a TensorRT engine.
        graph: ONNX graph of a TensorRT engine, which runs on any machine.
        float_digest: digest of the float32 graph, also of a float32 engine.
    """

    built_with: dict[str, str]
    opset: int = OPSET
    fusions: dict[str, int] = field(default_factory=dict)
    layers: LayerPrecisions = field(default_factory=LayerPrecisions)
    tensorrt: TensorRt | None = None
    graph: Path | None = None
    float_digest: str = ""


INTERMEDIATE, FLOAT_GRAPH = MODELS[EngineFormat.ONNX], "fp32.onnx"

GraphCheck = Callable[[Path], None]
EngineBuilder = Callable[[Variant, RunRows, Path, GraphCheck, Progress], BuildResult]


def build(
    variant: Variant, run_rows: RunRows, folder: Path, check: GraphCheck, progress: Progress
) -> BuildResult:
    """Write the files of an engine to `folder`; MODELS has the name of the main file.

    Args:
        variant: the variant of the engine.
        run_rows: the run and its rows.
        folder: folder for the files.
        check: raises an error for a wrong float32 graph, before it is converted to a lower
            precision.
        progress: receives the stages.

    Raises:
        CheckFailedError: `check` refused the float32 graph.
        ConfigError: the variant is not supported, or not for this model.
        MissingDependencyError: a package that the build needs is not installed.
    """
    main = folder / MODELS[variant.format]
    match variant.format:
        case EngineFormat.ONNX:
            if variant.precision is Precision.BF16:
                message = "onnxruntime's CPU provider does not support bf16"
                raise ConfigError(message, "use --to openvino --precision bf16")
            built = _graph(variant, run_rows, main, check, progress)
            if variant.precision is Precision.INT8 and (line := cuda_warning(main, cuda_gpu())):
                progress.note(f"{variant.label}: {line}")
            return built
        case EngineFormat.OPENVINO:
            graph = folder / INTERMEDIATE
            built = _graph(variant, run_rows, graph, check, progress)
            int8 = variant.precision is Precision.INT8
            onnx_to_openvino(
                graph, main, built.layers.fallback_precision if int8 else variant.precision
            )
            graph.unlink()
            return replace(built, built_with=built.built_with | package_versions("openvino"))
        case EngineFormat.TENSORRT:
            graph = folder / INTERMEDIATE
            built = _graph(variant, run_rows, graph, check, progress)
            tensorrt = onnx_to_tensorrt(graph, main, run_rows, progress)
            versions = built.built_with | {tensorrt.flavour: tensorrt.version}
            return replace(built, tensorrt=tensorrt, graph=graph, built_with=versions)


@contextmanager
def disk_space(folder: Path, manifest: Manifest) -> Iterator[None]:
    """Check before a build that its files fit on the disk.

    Raises:
        RunFolderError: they do not, or the disk becomes full.
    """
    needed = COPIES * sum(file.size for file in manifest.model.checkpoint)
    free = shutil.disk_usage(folder).free
    message = f"an engine in {folder.parents[1]} needs about {needed / MB:,.1f} MB"
    if free < needed:
        message += f", but {free / MB:,.1f} MB are free"
        raise RunFolderError(message, "free space on the disk")
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        message += f", which cannot be written: {error.strerror}"
        raise RunFolderError(message, "free space on the disk") from error


def _graph(
    variant: Variant, run_rows: RunRows, path: Path, check: GraphCheck, progress: Progress
) -> BuildResult:
    """Write the ONNX graph in the variant's precision to `path`; check that in float32 first."""
    plain = path.with_name(FLOAT_GRAPH)
    checkpoint_to_onnx(run_rows.run, run_rows.manifest, plain, variant.layout)
    digest = file_digest(plain)
    if variant.precision is not Precision.FP32:  # a float32 engine is checked itself
        check(plain)
    layers = LayerPrecisions()
    match variant.precision:
        case Precision.FP32 | Precision.BF16:  # the runtime converts to bf16
            plain.rename(path)
        case Precision.FP16:
            encodings = [row.encoding for row in run_rows.edge_cases]
            in_float32 = onnx_to_fp16(plain, path, graph_feeds(plain, run_rows, encodings))
            layers = LayerPrecisions(fallback=in_float32)
        case Precision.INT8:
            layers = onnx_to_int8(plain, path, variant, run_rows, progress)
    plain.unlink(missing_ok=True)
    return BuildResult(
        built_with=package_versions("onnx"),
        fusions=count_fusions(path),
        layers=layers,
        float_digest=digest,
    )


def float_variant(variant: Variant) -> Variant:
    """Return the float32 engine of the same format and layout; for TensorRT, that of ONNX."""
    openvino = variant.format is EngineFormat.OPENVINO
    return Variant(
        format=EngineFormat.OPENVINO if openvino else EngineFormat.ONNX,
        precision=Precision.FP32,
        layout=variant.layout,
    )


def build_float_engine(variant: Variant, graph: Path, folder: Path) -> Path:
    """Write the float32 engine of a graph to `folder`, for ONNX or OpenVINO; return its file."""
    path = folder / MODELS[variant.format]
    if variant.format is EngineFormat.OPENVINO:
        onnx_to_openvino(graph, path, Precision.FP32)
    else:
        shutil.copyfile(graph, path)
    return path


def package_versions(*packages: str) -> dict[str, str]:
    """Return the name of the exporter and the versions of torch, transformers and `packages`."""
    return {
        "exporter": EXPORTER,
        **{package: version(package) for package in ("torch", "transformers", *packages)},
    }
