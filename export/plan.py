"""Which engines are asked for, and which this machine can build and run."""

from pipework.engine_record import EngineFormat, Layout, Precision, Target, Variant
from pipework.errors import ConfigError
from pipework.manifest import Manifest


def asked(
    manifest: Manifest, to: Target, precision: Precision | None, layout: Layout | None
) -> tuple[Variant, ...]:
    """Return the engines that a command asks for.

    Raises:
        ConfigError: there is no such engine.
    """
    del manifest
    if to in (Target.TRITON, Target.AUTO):
        message = f"--to {to}: not an engine"
        raise ConfigError(message)
    return (
        Variant(
            format=EngineFormat(to),
            precision=precision or Precision.FP32,
            layout=layout or Layout.PADDED,
        ),
    )
