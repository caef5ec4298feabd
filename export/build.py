"""A checkpoint becomes the files of one engine, by the arrows that lead to it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from pipework.errors import ConfigError
from pipework.export.convert.checkpoint2onnx import EXPORTER, OPSET, checkpoint_to_onnx
from pipework.export.convert.fusions import count_fusions
from pipework.export.convert.onnx2fp16 import onnx_to_fp16
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.export.convert.onnx2tensorrt import onnx_to_tensorrt
from pipework.export.quantize.onnx2int8 import onnx_to_int8
from pipework.export.rows.run_rows import Subject, graph_feeds
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineFormat, Layer, Precision, TensorRt, Variant
from pipework.serve.engines import MODELS


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build tells of itself; its files lie in the folder that it was given.

    Attributes:
        built_with: versions of what built it.
        opset: of the ONNX graph.
        fusions: see `pipework.export.convert.fusions`; of the ONNX graph, whichever runtime takes it then.
        kept: layers left in a higher precision.
        beside: what an int8 engine of OpenVINO is computed in where it is not int8.
        tensorrt: of a TensorRT engine.
        graph: the graph that such an engine was made from, which can be run anywhere.
    """

    built_with: dict[str, str]
    opset: int = OPSET
    fusions: dict[str, int] = field(default_factory=dict)
    kept: tuple[Layer, ...] = ()
    beside: Precision = Precision.FP32
    tensorrt: TensorRt | None = None
    graph: Path | None = None


INTERMEDIATE = MODELS[EngineFormat.ONNX]

Build = Callable[[Variant, Subject, Path, Progress], Built]


def build(variant: Variant, subject: Subject, folder: Path, progress: Progress) -> Built:
    """Write the files of an engine into `folder`; the main one is named as in MODELS.

    Raises:
        ConfigError: there is no such engine, or not of this model.
        MissingDependencyError: a package that builds it is not installed.
    """
    main = folder / MODELS[variant.format]
    match variant.format:
        case EngineFormat.ONNX:
            if variant.precision is Precision.BF16:
                message = "onnxruntime's CPU provider does not compute in bf16"
                raise ConfigError(message, "take --to openvino --precision bf16")
            return _graph(variant, subject, main, progress)
        case EngineFormat.OPENVINO:
            graph = folder / INTERMEDIATE
            built = _graph(variant, subject, graph, progress)
            int8 = variant.precision is Precision.INT8
            onnx_to_openvino(graph, main, built.beside if int8 else variant.precision)
            graph.unlink()
            return replace(built, built_with=built.built_with | built_with("openvino"))
        case EngineFormat.TENSORRT:
            graph = folder / INTERMEDIATE
            built = _graph(variant, subject, graph, progress)
            made = onnx_to_tensorrt(graph, main, subject, progress)
            versions = built.built_with | {made.flavour: made.version}
            return replace(built, tensorrt=made, graph=graph, built_with=versions)


def _graph(variant: Variant, subject: Subject, path: Path, progress: Progress) -> Built:
    """Write the ONNX graph of a precision to `path`."""
    plain = path.with_name("fp32.onnx")
    checkpoint_to_onnx(subject.run, subject.manifest, plain, variant.layout)
    kept, beside = tuple[Layer, ...](), Precision.FP32
    match variant.precision:
        case Precision.FP32 | Precision.BF16:  # it is the runtime that computes in bf16
            plain.rename(path)
        case Precision.FP16:
            encodings = [row.encoding for row in subject.grid]
            kept = onnx_to_fp16(plain, path, graph_feeds(plain, subject, encodings))
        case Precision.INT8:
            kept, beside = onnx_to_int8(plain, path, variant, subject, progress)
    plain.unlink(missing_ok=True)
    return Built(
        built_with=built_with("onnx"), fusions=count_fusions(path), kept=kept, beside=beside
    )


def built_with(*packages: str) -> dict[str, str]:
    """Return the exporter and the versions of packages."""
    return {
        "exporter": EXPORTER,
        **{package: version(package) for package in ("torch", "transformers", *packages)},
    }
