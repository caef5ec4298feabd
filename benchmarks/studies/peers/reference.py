"""The expected predictions of servers: those of the checkpoint in float32, one text at a time.

Shapes: N texts, C labels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipework.benchmarks.studies.peers.competitor import Probabilities
from pipework.benchmarks.studies.peers.peer_server import PeerServer
from pipework.benchmarks.studies.records.peer_serving_results import AnswerCheck
from pipework.data.examples import Example
from pipework.errors import NotReadyError
from pipework.export.inference import open_encoder, open_model, split_source
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import label_array
from pipework.scoring.predictions import probabilities

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
            logits_NC = np.concatenate([checkpoint.infer([encoding]) for encoding in encodings])
        task = manifest.task
        *rows, long_row = (
            dict(zip(task.labels, row_C, strict=True))
            for row_C in probabilities(logits_NC, task).tolist()
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
