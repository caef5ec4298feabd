"""Build the files of one engine from a checkpoint."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pipework.errors import FULL, ConfigError, RunFolderError
from pipework.export.convert.checkpoint2onnx import EXPORTER, OPSET, checkpoint_to_onnx
from pipework.export.convert.converter import GRAPH, ConvertedGraph
from pipework.export.convert.converters import converter_of, graph_converter
from pipework.export.convert.fusions import count_fusions
from pipework.export.convert.onnx2fp16 import onnx_to_fp16
from pipework.export.quantize.onnx2int8 import LayerPrecisions, onnx_to_int8
from pipework.export.rows.run_rows import RunRows, graph_feeds, reads_first_only
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineBuild, Precision, Variant
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.runtimes import RUNTIMES

# Copies of the weights on the disk: the float32 graph, the converted one, and one with fusions.
COPIES, MB = 3, 10**6
FLOAT_GRAPH = "fp32.onnx"  # in the folder of an engine of a lower precision, until it is compared
GraphCheck = Callable[[Path], None]


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A built engine, whose files are in the folder passed to the builder.

    Attributes:
        built: its build record.
        int8_layers: module paths of the layers in int8.
        float_digest: digest of the float32 graph, also of a float32 engine.
    """

    built: EngineBuild
    int8_layers: frozenset[str] = frozenset()
    float_digest: str = ""


EngineBuilder = Callable[[Variant, RunRows, Path, GraphCheck, Progress], BuildResult]


def build(
    variant: Variant, run_rows: RunRows, folder: Path, check: GraphCheck, progress: Progress
) -> BuildResult:
    """Write the files of an engine to `folder`; see `Runtime.model_file` for the main file.

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
    converter = converter_of(variant.format)
    runtime = converter.runtime
    if variant.precision not in runtime.precisions:
        message = f"{variant.format} does not support {variant.precision}"
        others = (other.format for other in RUNTIMES if variant.precision in other.precisions)
        raise ConfigError(message, f"use --to {next(others)} --precision {variant.precision}")
    path, plain = folder / GRAPH, folder / FLOAT_GRAPH
    checkpoint_to_onnx(run_rows.run, run_rows.manifest, plain, variant.layout)
    digest = file_digest(plain)
    if variant.precision is not Precision.FP32:  # a float32 engine is checked itself
        check(plain)
    layers = _convert_precision(plain, path, variant, run_rows, progress)
    graph = ConvertedGraph(
        path=path,
        variant=variant,
        precision=layers.fallback_precision,
        build=EngineBuild(
            opset=OPSET,
            built_with={
                "exporter": EXPORTER,
                **{package: version(package) for package in ("torch", "transformers", "onnx")},
            },
            fusions=count_fusions(path),
            kept=layers.fallback,
            first_only=reads_first_only(path),
        ),
    )
    built = converter.convert(graph, folder / runtime.model_file, run_rows, progress)
    return BuildResult(built=built, int8_layers=layers.int8, float_digest=digest)


def _convert_precision(
    plain: Path, path: Path, variant: Variant, run_rows: RunRows, progress: Progress
) -> LayerPrecisions:
    """Write a float32 graph to `path`, in the precision of a variant."""
    layers = LayerPrecisions()
    match variant.precision:
        case Precision.FP32:
            plain.rename(path)
        case Precision.BF16:  # the runtime converts
            shutil.copyfile(plain, path)
            layers = LayerPrecisions(fallback_precision=variant.precision)
        case Precision.FP16:
            encodings = [row.encoding for row in run_rows.edge_cases]
            in_float32 = onnx_to_fp16(plain, path, graph_feeds(plain, run_rows, encodings))
            layers = LayerPrecisions(fallback=in_float32, fallback_precision=variant.precision)
        case Precision.INT8:
            layers = onnx_to_int8(plain, path, variant, run_rows, progress)
    return layers


def float_variant(variant: Variant) -> Variant:
    """Return the float32 engine that computes the graph of a variant before it is converted."""
    return Variant(
        format=graph_converter(variant).runtime.format,
        precision=Precision.FP32,
        layout=variant.layout,
    )


def build_float_engine(variant: Variant, graph: Path, folder: Path) -> Path:
    """Write the float32 engine of a graph to `folder`, see `float_variant`; return its file."""
    converter = graph_converter(variant)
    path = converter.write_graph(graph, folder, Precision.FP32)
    if path != graph:
        return path
    return Path(shutil.copyfile(graph, folder / converter.runtime.model_file))


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
