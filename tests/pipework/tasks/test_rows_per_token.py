"""A task with a row for each token: engines, queue, reference rows and tensors need no change."""

import numpy as np
import pytest

from pipework.run_folder.engine_record import Layout
from pipework.scoring.logit_diff import Comparison
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Collate, Costs
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.job import Job, deliver
from pipework.serve.scheduling.queue import BatchQueue
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from pipework.wire.text_tensors import OutputTensors
from tests.pipework.tasks.token_task import WordTask

TASK = WordTask(labels=("even", "odd"), metric=Metric.ACCURACY)
LENGTHS = (3, 1, 6, 2, 9)
ENCODINGS = [Encoding(ids=np.arange(1, n + 1, dtype=np.int32), type_ids=None) for n in LENGTHS]
WORDS = ("odd", "even") * 5
EXPECTED = [[*WORDS[:length]] for length in LENGTHS]


class ParityEngine(CollatedEngine):
    """Returns a row for each token of a call, as a graph that drops the padding does."""

    def _start(self, arrays):
        ids_R = arrays["input_ids"][arrays["attention_mask"] == 1]
        return lambda: np.stack([ids_R % 2 == 0, ids_R % 2 == 1], axis=1).astype(np.float32)

    def close(self):
        pass


@pytest.fixture
def engine():
    collate = Collate(
        layout=Layout.PADDED,
        padding=Padding(pad_id=0, type_ids=False),
        spans=False,
        costs=Costs(call_tokens=1, most_tokens=8),  # several calls, in another order
        row_offsets=TASK.row_offsets,
    )
    return ParityEngine(collate)


def labels(outputs):
    parts = np.split(outputs.values.argmax(axis=1), outputs.offsets[1:-1])
    return [[TASK.labels[index] for index in part] for part in parts]


def test_an_engine_returns_the_rows_of_each_input(engine):
    outputs = engine.infer(ENCODINGS)
    assert outputs.counts.tolist() == [*LENGTHS]
    assert labels(outputs) == EXPECTED
    assert len(engine.infer([])) == 0


def test_requests_get_their_rows_from_shared_batches(engine):
    queue = BatchQueue(batch_tokens=7)
    jobs = [
        Job(encodings=encodings, options=RequestOptions(), queued_s=0.0)
        for encodings in (ENCODINGS[:2], ENCODINGS[2:])
    ]
    for job in jobs:
        queue.add(job)
    while queue:
        batch = queue.next_batch()
        outputs = engine.infer([encoding for part in batch for encoding in part.encodings])
        deliver(batch, outputs, 0.0, 0.0)
        queue.finish(batch)
    assert [labels(job.future.result(0).outputs) for job in jobs] == [EXPECTED[:2], EXPECTED[2:]]


def test_reference_rows_keep_the_offsets(engine, tmp_path):
    outputs = engine.infer(ENCODINGS)
    ReferenceRows(encodings=ENCODINGS, outputs=outputs).write(tmp_path / "rows.npz")
    found = ReferenceRows.read(tmp_path / "rows.npz").outputs
    assert found.offsets.tolist() == outputs.offsets.tolist()
    assert np.array_equal(found.values, outputs.values)


def test_a_comparison_counts_inputs_and_finds_the_spread_of_each_row(engine):
    outputs = engine.infer(ENCODINGS)
    inputs = np.tile(np.arange(len(ENCODINGS)), 2)
    changed = Outputs(outputs.values.copy(), outputs.offsets)
    changed.values[-1] = (1, 0)  # the last token of the last input
    comparison = Comparison.of(
        TASK,
        expected=Outputs.concatenate([outputs, outputs]),
        found=Outputs.concatenate([outputs, changed]),
        inputs=inputs,
        lengths=np.tile(LENGTHS, 2),
    )
    assert comparison.flipped.tolist() == [False] * 4 + [True]
    assert comparison.spread == 1
    assert comparison.max_differences.max() == 1


def test_tensors_have_the_number_of_rows_of_each_text(engine):
    tensors = OutputTensors.of(engine.infer(ENCODINGS), TASK)
    assert tensors.tensors()["rows"][:, 0].tolist() == [*LENGTHS]
    part = tensors.rows(1, 3)
    assert part.tensors()["logits"].shape == (7, 2)
    assert [text.decode() for text in part.label_N] == ["", " ".join(WORDS[1:5])]  # of the words
