"""Where the time of a request went."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Seconds that a request spent in each stage.

    Attributes:
        tokenize_s: text to ids, with the wait for a thread that does it.
        queue_s: waiting for an engine, between the batches of a large request too.
        infer_s: in engines, of the whole batches that it was part of.
        decode_s: logits to labels.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0
    decode_s: float = 0.0

    def named(self) -> dict[str, float]:
        """Return the seconds by the name of the stage."""
        return {
            "tokenize": self.tokenize_s,
            "queue": self.queue_s,
            "infer": self.infer_s,
            "decode": self.decode_s,
        }

    def header(self) -> str:
        """Return them as the value of a Server-Timing header, in milliseconds.

        https://www.w3.org/TR/server-timing/
        """
        return (
            f"tokenize;dur={self.tokenize_s * 1e3:.3f}, queue;dur={self.queue_s * 1e3:.3f}, "
            f"infer;dur={self.infer_s * 1e3:.3f}, decode;dur={self.decode_s * 1e3:.3f}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed(Generic[T_co]):
    """An answer and where its time went."""

    value: T_co
    stages: Stages
