"""Recorded requests: which texts came when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pipework.benchmarks.load.outcome import MAX_REQUESTS
from pipework.benchmarks.load.workload import Workload
from pipework.errors import DataError
from pipework.serve.schemas import PredictRequest, explain

HINT = 'one request a line, as {"at_s": 0.25, "texts": ["a text", "another"]}'


class _Line(PredictRequest):
    at_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    tokens: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests, and the seconds after the first at which each is to be sent; read from `path`."""

    path: Path
    workload: Workload
    at_s: tuple[float, ...]

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Read a jsonl file of requests in the order of their times; the first 500,000 at most.

        A line is the time in seconds, and texts or inputs as `POST /v1/predict` takes them; where
        each also says how many `tokens` its texts have together, their rate is known.

        Raises:
            DataError: the file cannot be read, holds no requests, or one that is none or comes
                before the one above it; the message starts with file:line.
        """
        lines = list(islice(_lines(path), MAX_REQUESTS))
        if not lines:
            message = f"{path} holds no requests"
            raise DataError(message, HINT)
        for number, (one, other) in enumerate(pairwise(lines), start=2):
            if other.at_s < one.at_s:
                message = f"{path}:{number}: at_s: expected {one.at_s:g} or later"
                raise DataError(message, "sort the requests by their times")
        requests = [one.examples() for one in lines]
        workload = Workload(
            source=path.name,
            examples=tuple(example for examples in requests for example in examples),
            texts_per_request=None,
            sizes=tuple(len(examples) for examples in requests),
            seed=0,
            mean_tokens=_mean_tokens(lines),
        )
        times_s = tuple(one.at_s - lines[0].at_s for one in lines)
        return cls(path=path, workload=workload, at_s=times_s)

    @property
    def duration_s(self) -> float:
        """From the first request to a mean gap behind the last; a second for a single one."""
        count = len(self.at_s)
        return self.at_s[-1] * count / (count - 1) if self.at_s[-1] else 1.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.at_s) / self.duration_s


def _mean_tokens(lines: Sequence[_Line]) -> float | None:
    """Return the tokens of a text, None unless every line counts its own."""
    counts = [one.tokens for one in lines if one.tokens is not None]
    if len(counts) < len(lines):
        return None
    return round(sum(counts) / sum(len(one.examples()) for one in lines), 2)


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                yield _line(path, number, line)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message) from error


def _line(path: Path, number: int, line: bytes) -> _Line:
    try:
        return _Line.model_validate_json(line)
    except ValidationError as error:
        message = f"{path}:{number}: {explain(error)}"
        raise DataError(message, HINT) from error
