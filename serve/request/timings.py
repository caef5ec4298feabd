"""Time that a request spends in each stage."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimings:
    """Seconds that a request spent in each stage.

    Attributes:
        tokenize_s: conversion of texts to ids, including the wait for a tokenizer thread.
        queue_s: wait for an engine, including the waits between the batches of a large request.
        infer_s: time in engines: the full duration of each batch that contained the request.
        decode_s: conversion of logits to labels.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0
    decode_s: float = 0.0

    def by_stage(self) -> dict[str, float]:
        """Return the seconds by stage name."""
        return {
            "tokenize": self.tokenize_s,
            "queue": self.queue_s,
            "infer": self.infer_s,
            "decode": self.decode_s,
        }

    def server_timing(self) -> str:
        """Return the value of a Server-Timing header, in milliseconds.

        https://www.w3.org/TR/server-timing/
        """
        return (
            f"tokenize;dur={self.tokenize_s * 1e3:.3f}, queue;dur={self.queue_s * 1e3:.3f}, "
            f"infer;dur={self.infer_s * 1e3:.3f}, decode;dur={self.decode_s * 1e3:.3f}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedResult(Generic[T_co]):
    """A result and the stage timings of its request."""

    value: T_co
    timings: StageTimings
