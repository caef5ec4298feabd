"""Measure one server at a time: check its predictions, apply the loads, read its memory.

The checkpoint in float32 gives the expected predictions, one text at a time.

Shapes: N texts, C labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.loops import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.studies.peers.competitor import (
    Competitor,
    LaunchContext,
    PeerTarget,
    Probabilities,
)
from pipework.benchmarks.studies.peers.peer_server import PeerServer
from pipework.benchmarks.studies.records.peer_serving_results import (
    AnswerCheck,
    Candidate,
    ClientLoad,
    PeerMeasurement,
)
from pipework.benchmarks.targets.address import TargetAddress
from pipework.data.examples import Example
from pipework.data.splits import split_source
from pipework.errors import NotReadyError, PipeError
from pipework.export.inference import open_model
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import label_array
from pipework.serve.triton.server import Ports
from pipework.text.encoding import open_encoder

ROWS, BATCH = 200, 8
LONG = 4  # the too long text has at least this multiple of max_length words


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Dev texts, their true labels, the checkpoint's probabilities, and a text that is too long."""

    texts: tuple[str, ...]
    true_labels: tuple[str, ...]
    rows: tuple[Probabilities, ...]
    long: str
    long_row: Probabilities

    @classmethod
    def of(cls, run: Path) -> "Reference":
        """Compute the predictions for rows spread over a run's dev file.

        Raises:
            PipeError: the dev file or the checkpoint is missing.
        """
        manifest = read_manifest(run)
        examples = list(split_source(run, manifest, "dev").rows())
        chosen = examples[:: max(1, len(examples) // ROWS)][:ROWS]
        words = " ".join(example.text for example in examples).split()[: manifest.input.max_length]
        long = " ".join(words * LONG)
        encoder = open_encoder(run, manifest)
        encodings = encoder.encode([*chosen, Example(text=long)])
        with open_model(run, manifest, checkpoint=True) as checkpoint:
            logits_NC = np.concatenate(
                [checkpoint.infer([encoding]).values for encoding in encodings]
            )
        task = manifest.task
        *rows, long_row = (
            dict(zip(task.labels, row_C, strict=True))
            for row_C in task.probabilities(logits_NC).tolist()
        )
        return cls(
            texts=tuple(example.text for example in chosen),
            true_labels=tuple(task.labels[int(row)] for row in label_array(chosen, task, "dev")),
            rows=tuple(rows),
            long=long,
            long_row=long_row,
        )

    def check(self, server: PeerServer) -> AnswerCheck:
        """Send the texts to a server and compare its predictions.

        Raises:
            NotReadyError: a request fails.
        """
        predictions: list[Probabilities] = []
        for start in range(0, len(self.texts), BATCH):
            predictions += server.ask(self.texts[start : start + BATCH])
        return AnswerCheck(
            rows=len(predictions),
            same=sum(map(_same, predictions, self.rows)),
            max_difference=max(map(_difference, predictions, self.rows)),
            accuracy=self._accuracy(predictions),
            checkpoint_accuracy=self._accuracy(self.rows),
            truncates=self._truncates(server),
        )

    def _accuracy(self, rows: "list[Probabilities] | tuple[Probabilities, ...]") -> float:
        right = sum(_best(row) == label for row, label in zip(rows, self.true_labels, strict=True))
        return 100 * right / len(self.true_labels)

    def _truncates(self, server: PeerServer) -> bool:
        try:
            (row,) = server.ask([self.long])
        except NotReadyError:
            return False
        return _same(row, self.long_row)


def _best(row: Probabilities) -> str:
    return max(row, key=lambda label: row[label])


def _same(prediction: Probabilities, expected: Probabilities) -> bool:
    return _best(prediction) == _best(expected)


def _difference(prediction: Probabilities, expected: Probabilities) -> float:
    return max(abs(score - expected.get(label, 2.0)) for label, score in prediction.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The inputs that are the same for all servers."""

    context: LaunchContext
    reference: Reference
    workloads: Mapping[ClientLoad, Workload]
    progress: Progress

    def measure(
        self, competitor: Competitor, loads: Iterable[ClientLoad], number: int, seconds: float
    ) -> tuple[Candidate, list[PeerMeasurement]]:
        """Start a competitor and measure it under each load; record the reason of a failure.

        Its predictions are checked in round 0, the search.
        """
        answers: AnswerCheck | None = None
        trials: list[PeerMeasurement] = []
        failed: str | None = None
        with TemporaryDirectory() as scratch:
            context = replace(self.context, scratch=Path(scratch), port=Ports().chosen().http)
            try:
                with PeerServer(competitor, context) as server:
                    answers = None if number else self.reference.check(server)
                    trials.extend(
                        self._trial(competitor, server, load, number, seconds) for load in loads
                    )
            except PipeError as error:
                failed = _reason(error, context)
        candidate = Candidate(
            peer=competitor.peer,
            settings=competitor.settings,
            answers=answers,
            failed=failed,
        )
        return candidate, trials

    def _trial(
        self,
        competitor: Competitor,
        server: PeerServer,
        load: ClientLoad,
        number: int,
        seconds: float,
    ) -> PeerMeasurement:
        target = PeerTarget(address=TargetAddress.of(server.url), competitor=competitor)
        spec = LoadSpec(
            workload=self.workloads[load],
            load=OfferedLoad(concurrency=load.clients),
            warmup_s=min(1.5, seconds / 2),
            duration_s=seconds,
        )
        level = closed_loop(target, spec, self.progress).level
        times = level.latency_ms
        return PeerMeasurement(
            peer=competitor.peer,
            settings=competitor.settings,
            load=load,
            round=number,
            texts_per_s=level.texts_per_s,
            p50_ms=None if times is None else times.p50,
            p99_ms=None if times is None else times.p99,
            errors=level.errors,
            memory_mib=round(server.memory_mib(), 1),
            start_s=round(server.start_s, 2),
        )


def installed(
    competitors: Sequence[Competitor], infinity: Path
) -> tuple[list[Competitor], dict[str, str]]:
    """Return the installed competitors, and the reasons for the absent environments."""
    absent: dict[str, str] = {}
    for environment in dict.fromkeys(competitor.environment for competitor in competitors):
        try:
            environment.python(infinity)
        except PipeError as error:
            absent[environment] = f"{error}".replace(str(infinity), "INFINITY")
    present = [competitor for competitor in competitors if competitor.environment not in absent]
    return present, absent


def _reason(error: PipeError, context: LaunchContext) -> str:
    """Return the reason of a failure on one line, without paths of this machine."""
    return context.hide(f"{error}; {_last_error(error.details)}")


def _last_error(log: str) -> str:
    """Return the last log line that names an error, otherwise the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " ".join((errors or lines or ["its log is empty"])[-1].split())[:300]
