"""Traces: recorded requests and their send times."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pipework.benchmarks.load.outcome import MAX_REQUESTS
from pipework.benchmarks.load.workload import Workload
from pipework.errors import DataError
from pipework.wire.schemas import PredictRequest, explain

HINT = 'expected one request per line: {"at_s": 0.25, "texts": ["a text", "another"]}'


class _Line(PredictRequest):
    at_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests; `at_s` are their send times in seconds after the first request."""

    workload: Workload
    at_s: tuple[float, ...]

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Read a jsonl file of requests, sorted by time; at most the first 500,000.

        A line has a time in seconds (`at_s`) and `texts` or `inputs` as in `POST /v1/predict`.

        Raises:
            DataError: the file cannot be read or has no requests, or a line is invalid or out of
                order; the message starts with file:line.
        """
        lines = list(islice(_lines(path), MAX_REQUESTS))
        if not lines:
            message = f"{path} contains no requests"
            raise DataError(message, HINT)
        for number, (line, next_line) in enumerate(pairwise(lines), start=2):
            if next_line.at_s < line.at_s:
                message = f"{path}:{number}: at_s: expected {line.at_s:g} or later"
                raise DataError(message, "sort the requests by at_s")
        requests = [line.examples() for line in lines]
        workload = Workload(
            source=path.name,
            examples=tuple(example for examples in requests for example in examples),
            texts_per_request=None,
            sizes=tuple(len(examples) for examples in requests),
            seed=0,
        )
        times_s = tuple(line.at_s - lines[0].at_s for line in lines)
        return cls(workload=workload, at_s=times_s)

    @property
    def duration_s(self) -> float:
        """Seconds from the first request to one mean gap after the last; 1 for a single request."""
        count = len(self.at_s)
        return self.at_s[-1] * count / (count - 1) if self.at_s[-1] else 1.0

    @property
    def rate(self) -> float:
        """Mean rate in requests/s."""
        return len(self.at_s) / self.duration_s


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
