"""A checkpoint becomes the files of one engine, by the arrows that lead to it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from export.checkpoint2onnx import EXPORTER, OPSET, checkpoint_to_onnx
from export.subject import Subject
from pipework.engine_record import EngineFormat, Layer, Precision, TensorRt, Variant
from pipework.errors import ConfigError
from pipework.progress import Progress
from serve.engines import MODELS


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build tells of itself; its files lie in the folder that it was given.

    Attributes:
        built_with: versions of what built it.
        opset: of the ONNX graph.
        fusions: how many of each kind of subgraph were fused.
        kept: layers left in a higher precision.
        tensorrt: of a TensorRT engine, which was built and not run.
    """

    built_with: dict[str, str]
    opset: int = OPSET
    fusions: dict[str, int]
    kept: tuple[Layer, ...] = ()
    tensorrt: TensorRt | None = None


Build = Callable[[Variant, Subject, Path, Progress], Built]


def build(variant: Variant, subject: Subject, folder: Path, progress: Progress) -> Built:
    """Write the files of an engine into `folder`; the main one is named as in MODELS.

    Raises:
        ConfigError: there is no such engine, or not of this model.
        MissingDependencyError: a package that builds it is not installed.
    """
    del progress
    match variant.format, variant.precision:
        case EngineFormat.ONNX, Precision.FP32:
            graph = folder / MODELS[EngineFormat.ONNX]
            checkpoint_to_onnx(subject.run, subject.manifest, graph, variant.layout)
            return Built(built_with=built_with("onnx"), fusions={})
        case _:
            message = f"there is no engine {variant.label}"
            raise ConfigError(message)


def built_with(*packages: str) -> dict[str, str]:
    """Return the exporter and the versions of packages."""
    return {
        "exporter": EXPORTER,
        **{package: version(package) for package in ("torch", "transformers", *packages)},
    }
