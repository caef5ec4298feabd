"""Which engines are asked for, and which of them this machine can run."""

import importlib.util
from itertools import product

from pipework.cpu import computes_bf16
from pipework.errors import ConfigError
from pipework.run_folder.engine_record import (
    EngineFormat,
    Layout,
    Precision,
    Scaling,
    Target,
    Variant,
)
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.tensorrt_packages import builds_here, gpu_or_none
from pipework.train.model.packable import PACKABLE

PRECISIONS = {
    EngineFormat.ONNX: (Precision.FP32, Precision.FP16, Precision.INT8),
    EngineFormat.OPENVINO: (Precision.FP32, Precision.BF16, Precision.INT8),
    EngineFormat.TENSORRT: (Precision.FP32, Precision.FP16, Precision.INT8),
}


def asked(
    manifest: Manifest, to: Target, precision: Precision | None, layout: Layout | None
) -> tuple[Variant, ...]:
    """Return the engines that a command asks for; for `auto` those that can be run here.

    What is left out is fp32 and padded, for `auto` all there is. int8 of onnxruntime is two
    engines: which scaling wins is to be measured.

    Raises:
        ConfigError: there is no such engine.
    """
    if to is Target.TRITON:
        return ()
    if to is Target.AUTO:
        formats = tuple(format_ for format_ in EngineFormat if _runs(format_))
        packable = manifest.model.family in PACKABLE
        layouts = (Layout.PADDED, Layout.PACKED) if packable else (Layout.PADDED,)
        found = _variants(formats, (precision,) if precision else _here(), layouts)
        chosen = tuple(one for one in found if layout in (None, one.layout))
    else:
        wanted = (precision or Precision.FP32,)
        chosen = _variants((EngineFormat(to),), wanted, (layout or Layout.PADDED,))
    if not chosen:
        ways = "; ".join(f"{one}: {', '.join(found)}" for one, found in PRECISIONS.items())
        given = {"to": to, "precision": precision, "layout": layout}
        words = " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
        message = f"there is no engine of {words}"
        raise ConfigError(message, ways)
    return chosen


def every() -> tuple[Variant, ...]:
    """Return every engine that can be asked for, whether or not this machine can run it."""
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


def _runs(format_: EngineFormat) -> bool:
    match format_:
        case EngineFormat.ONNX:
            return importlib.util.find_spec("onnxruntime") is not None
        case EngineFormat.OPENVINO:
            return importlib.util.find_spec("openvino") is not None
        case EngineFormat.TENSORRT:
            return gpu_or_none() is not None and builds_here()


def _here() -> tuple[Precision, ...]:
    """Return the precisions that are worth trying on this machine: fp16 is for GPUs."""
    fp16 = (Precision.FP16,) if gpu_or_none() is not None else ()
    bf16 = (Precision.BF16,) if computes_bf16() else ()
    return (Precision.FP32, *fp16, *bf16, Precision.INT8)
