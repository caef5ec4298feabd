"""What servers should answer: what the checkpoint says of real texts, in float32, one by one.

Shapes: N texts, C labels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipework.benchmarks.studies.peer_serving_results import Answers
from pipework.benchmarks.studies.peers.competitor import Probabilities
from pipework.benchmarks.studies.peers.peer_server import PeerServer
from pipework.data.examples import Example
from pipework.errors import NotReadyError
from pipework.export.inference import open_answering, open_encoder, split_source
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import truth
from pipework.scoring.predictions import probabilities

ROWS, AT_ONCE = 200, 8
LONG = 4  # times as many words as the model takes tokens, at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Dev texts with their true labels and the checkpoint's probabilities; the last is too long."""

    texts: tuple[str, ...]
    truth: tuple[str, ...]
    rows: tuple[Probabilities, ...]
    long: str
    long_row: Probabilities

    @classmethod
    def of(cls, run: Path) -> "Reference":
        """Compute it for rows spread over the dev file of a run.

        Raises:
            PipeError: the file or the checkpoint is not there.
        """
        manifest = read_manifest(run)
        every = list(split_source(run, manifest, "dev").rows())
        chosen = every[:: max(1, len(every) // ROWS)][:ROWS]
        words = " ".join(one.text for one in every).split()[: manifest.input.max_length]
        long = " ".join(words * LONG)
        encoder = open_encoder(run, manifest)
        encodings = encoder.encode([*chosen, Example(text=long)])
        with open_answering(run, manifest, checkpoint=True) as checkpoint:
            logits_NC = np.concatenate([checkpoint.infer([one]) for one in encodings])
        task = manifest.task
        *rows, long_row = (
            dict(zip(task.labels, row_C, strict=True))
            for row_C in probabilities(logits_NC, task).tolist()
        )
        return cls(
            texts=tuple(one.text for one in chosen),
            truth=tuple(task.labels[int(row)] for row in truth(chosen, task, "dev")),
            rows=tuple(rows),
            long=long,
            long_row=long_row,
        )

    def check(self, server: PeerServer) -> Answers:
        """Ask a server for these texts and compare.

        Raises:
            NotReadyError: it does not answer them.
        """
        found: list[Probabilities] = []
        for start in range(0, len(self.texts), AT_ONCE):
            found += server.ask(self.texts[start : start + AT_ONCE])
        return Answers(
            rows=len(found),
            same=sum(map(_same, found, self.rows)),
            max_difference=max(map(_difference, found, self.rows)),
            accuracy=self._accuracy(found),
            checkpoint_accuracy=self._accuracy(self.rows),
            truncates=self._truncates(server),
        )

    def _accuracy(self, rows: "list[Probabilities] | tuple[Probabilities, ...]") -> float:
        right = sum(_best(row) == label for row, label in zip(rows, self.truth, strict=True))
        return 100 * right / len(self.truth)

    def _truncates(self, server: PeerServer) -> bool:
        try:
            (row,) = server.ask([self.long])
        except NotReadyError:
            return False
        return _same(row, self.long_row)


def _best(row: Probabilities) -> str:
    return max(row, key=lambda label: row[label])


def _same(found: Probabilities, expected: Probabilities) -> bool:
    return _best(found) == _best(expected)


def _difference(found: Probabilities, expected: Probabilities) -> float:
    return max(abs(score - expected.get(label, 2.0)) for label, score in found.items())
