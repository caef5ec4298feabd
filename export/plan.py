"""Select the engine variants to build."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from pipework.errors import ConfigError, RunFolderError
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.runtime import Runtime
from pipework.serve.engines.runtimes import RUNTIMES, runtime_of
from pipework.train.config.model import LINEAR_FAMILY

IN_MINUTES_S = 120.0
AUTO = "auto"  # all variants that this machine can run
TRITON = "triton"  # a recorded engine in a Triton repository
CASCADE = "cascade"  # a first stage before a recorded engine


def targets() -> tuple[str, ...]:
    """Return the values of `pipe export --to`: the formats of engines, and the others."""
    return (*(runtime.format for runtime in RUNTIMES), TRITON, CASCADE, AUTO)


def select_variants(
    manifest: Manifest, to: str, precision: Precision | None, layout: Layout | None
) -> tuple[Variant, ...]:
    """Return the engine variants to build; `auto` selects all that this machine can run.

    A missing precision or layout means fp32 or padded; for `auto` it means all of them.
    int8 gives a variant for each scaling: measure which is faster.

    Raises:
        ConfigError: the target is unknown, or no variant matches.
        MissingDependencyError: no package that builds engines of the format is installed.
    """
    if to not in targets():
        message = f"unknown target --to {to}"
        raise ConfigError(message, f"use one of {', '.join(targets())}")
    if to in (TRITON, CASCADE):
        return ()
    if to == AUTO:
        quantizable = manifest.model.family != LINEAR_FAMILY
        chosen = tuple(
            variant
            for runtime in RUNTIMES
            for variant in _variants(
                runtime,
                _local_precisions(runtime, precision),
                _local_layouts(runtime, manifest.model.family),
                _scalings(runtime, manifest),
            )
            if layout in (None, variant.layout)
            and (quantizable or variant.precision is not Precision.INT8)
            # Without float16, attention is not one kernel.
            and (variant.layout is not Layout.VARLEN or variant.precision is Precision.FP16)
        )
    else:
        runtime = runtime_of(to)
        precisions = (precision or Precision.FP32,)
        layouts = (layout or Layout.PADDED,)
        chosen = _variants(runtime, precisions, layouts, _scalings(runtime, manifest))
    if not chosen:
        supported = "; ".join(
            f"{runtime.format}: {', '.join(runtime.precisions)} ({', '.join(runtime.layouts)})"
            for runtime in RUNTIMES
        )
        options = {"to": to, "precision": precision, "layout": layout}
        command = " ".join(
            f"--{name} {value}" for name, value in options.items() if value is not None
        )
        message = f"no engine variant matches {command}"
        raise ConfigError(message, f"supported: {supported}")
    if to != AUTO:
        runtime_of(to).check_converter()
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
    return tuple(
        variant
        for runtime in RUNTIMES
        for variant in _variants(runtime, runtime.precisions, tuple(Layout), runtime.scalings)
    )


def _variants(
    runtime: Runtime,
    precisions: Sequence[Precision],
    layouts: Sequence[Layout],
    scalings: Sequence[Scaling],
) -> tuple[Variant, ...]:
    return tuple(
        Variant(format=runtime.format, precision=precision, layout=layout, scaling=scaling)
        for precision, layout in product(precisions, layouts)
        if runtime.supports(precision, layout)
        for scaling in (scalings if precision is Precision.INT8 else (None,))
    )


def _local_layouts(runtime: Runtime, family: str) -> tuple[Layout, ...]:
    """Return the layouts to build with `auto`: those of a family that are worth building here."""
    from pipework.train.model.packed_encoder import PACKABLE, VARLEN  # noqa: PLC0415  (torch)

    packed = (Layout.PACKED,) if family in PACKABLE else ()
    # A runtime of the varlen layout builds float16 where it computes on a GPU.
    varlen = Layout.VARLEN in runtime.layouts and Precision.FP16 in runtime.local_precisions()
    return (Layout.PADDED, *packed, *((Layout.VARLEN,) if varlen and family in VARLEN else ()))


def _scalings(runtime: Runtime, manifest: Manifest) -> tuple[Scaling, ...]:
    """Return the scalings that are worth building here, and those of the engines of a run."""
    found = {*runtime.local_scalings(), *(engine.scaling for engine in manifest.engines)}
    return tuple(scaling for scaling in runtime.scalings if scaling in found)


def _local_precisions(runtime: Runtime, precision: Precision | None) -> Sequence[Precision]:
    """Return the precisions to build with `auto`, or only the requested one."""
    local = runtime.local_precisions()
    return local if precision is None or not local else (precision,)
