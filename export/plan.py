"""Select the engine variants to build."""

import importlib.util
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from pipework.errors import ConfigError, RunFolderError
from pipework.machine import computes_bf16
from pipework.run_folder.engine_record import (
    EngineFormat,
    ExportTarget,
    Layout,
    Precision,
    Scaling,
    Variant,
)
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.tensorrt_packages import builder_flavour, builds_here, gpu_or_none

PRECISIONS = {
    EngineFormat.ONNX: (Precision.FP32, Precision.FP16, Precision.INT8),
    EngineFormat.OPENVINO: (Precision.FP32, Precision.BF16, Precision.INT8),
    EngineFormat.TENSORRT: (Precision.FP32, Precision.FP16, Precision.INT8),
}

IN_MINUTES_S = 120.0


def select_variants(
    manifest: Manifest, to: ExportTarget, precision: Precision | None, layout: Layout | None
) -> tuple[Variant, ...]:
    """Return the engine variants to build; `auto` selects all that this machine can run.

    A missing precision or layout means fp32 or padded; for `auto` it means all of them.
    int8 with onnxruntime gives two variants, dynamic and static: measure which is faster.

    Raises:
        ConfigError: no variant matches.
        MissingDependencyError: no package that builds TensorRT engines is installed.
    """
    if to is ExportTarget.TRITON:
        return ()
    if to is ExportTarget.AUTO:
        from pipework.train.model.packed_encoder import PACKABLE  # noqa: PLC0415  (imports torch)

        formats = tuple(format_ for format_ in EngineFormat if _available(format_))
        packable = manifest.model.family in PACKABLE
        layouts = (Layout.PADDED, Layout.PACKED) if packable else (Layout.PADDED,)
        variants = _variants(formats, (precision,) if precision else _local_precisions(), layouts)
        chosen = tuple(variant for variant in variants if layout in (None, variant.layout))
    else:
        precisions = (precision or Precision.FP32,)
        chosen = _variants((EngineFormat(to),), precisions, (layout or Layout.PADDED,))
    if not chosen:
        supported = "; ".join(
            f"{format_}: {', '.join(precisions)}" for format_, precisions in PRECISIONS.items()
        )
        options = {"to": to, "precision": precision, "layout": layout}
        command = " ".join(
            f"--{name} {value}" for name, value in options.items() if value is not None
        )
        message = f"no engine variant matches {command}"
        raise ConfigError(message, f"supported precisions: {supported}")
    if to is ExportTarget.TENSORRT:
        builder_flavour()
    return chosen


def recorded_names(run: Path, manifest: Manifest, variants: Sequence[Variant]) -> list[str]:
    """Return the names of the variants that a run has engines of.

    Raises:
        RunFolderError: it has none of them.
    """
    recorded = [engine.name for engine in manifest.engines]
    labels = [variant.label for variant in variants]
    names = [label for label in labels if label in recorded]
    if not names:
        message = f"{run} has none of the engines to measure again: {', '.join(labels)}; "
        message += f"its engines: {', '.join(recorded) or 'none'}"
        hint = "build them: repeat the command without --set rebuild=false"
        raise RunFolderError(message, hint)
    return names


def time_left(elapsed_s: float, built: int, total: int, speed_s: float) -> str:
    """Estimate the rest of an export after some builds; empty before the first.

    A build takes as long as those before it, and the measurement of an engine takes up to twice
    `speed_s`, because of its warm-up.
    """
    if not built:
        return ""
    left_s = elapsed_s / built * (total - built) + 2 * speed_s * total
    shown = f"{left_s / 60:.0f} min" if left_s >= IN_MINUTES_S else f"{left_s:.0f} s"
    return f", about {shown} left"


def all_variants() -> tuple[Variant, ...]:
    """Return all supported engine variants, including those that this machine cannot run."""
    return _variants(tuple(EngineFormat), tuple(Precision), tuple(Layout))


def _variants(
    formats: tuple[EngineFormat, ...],
    precisions: tuple[Precision, ...],
    layouts: tuple[Layout, ...],
) -> tuple[Variant, ...]:
    return tuple(
        Variant(format=format_, precision=precision, layout=layout, scaling=scaling)
        for format_, precision, layout in product(formats, precisions, layouts)
        if precision in PRECISIONS[format_]
        for scaling in _scalings(format_, precision)
    )


def _scalings(format_: EngineFormat, precision: Precision) -> tuple[Scaling | None, ...]:
    if precision is not Precision.INT8:
        return (None,)
    return (*Scaling,) if format_ is EngineFormat.ONNX else (Scaling.STATIC,)


def _available(format_: EngineFormat) -> bool:
    match format_:
        case EngineFormat.ONNX:
            return importlib.util.find_spec("onnxruntime") is not None
        case EngineFormat.OPENVINO:
            return importlib.util.find_spec("openvino") is not None
        case EngineFormat.TENSORRT:
            return gpu_or_none() is not None and builds_here()


def _local_precisions() -> tuple[Precision, ...]:
    """Return the precisions worth trying on this machine; fp16 needs a GPU."""
    fp16 = (Precision.FP16,) if gpu_or_none() is not None else ()
    bf16 = (Precision.BF16,) if computes_bf16() else ()
    return (Precision.FP32, *fp16, *bf16, Precision.INT8)
