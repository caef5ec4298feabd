"""A shorter limit of the inputs is advised where the model does not need the rest."""

import random

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.bootstrap import TaskOutputs
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.text.encoding import TextEncoder
from pipework.train.config.model import ModelSettings
from pipework.train.data.tokenizer import learn_wordpiece
from pipework.train.report.shorter_inputs import shorter_inputs
from tests.train.linear.conftest import WORDS, fitted  # noqa: F401  (a fixture)

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
ROWS = 800
FILLER = ("the", "a", "we", "you", "they", "it")


@pytest.fixture(scope="module")
def encoder():
    words = ["zero", "one", *FILLER]
    settings = ModelSettings(preset="tiny", vocab_size=100)
    tokenizer = learn_wordpiece(settings, lambda: [" ".join(words)] * 50)
    return TextEncoder(tokenizer, max_length=64, type_ids=False)


def advice(encoder, decide, rows=ROWS):
    """Return the advice for texts of 40 words; `decide` returns the label from the token ids."""
    generator = random.Random(0)
    examples = [Example(text=" ".join(generator.choices(FILLER, k=40))) for _ in range(rows)]

    def infer(encodings):
        ones = np.array([decide(encoding.ids) for encoding in encodings], np.int64)
        return Outputs.of(4 * np.eye(2, dtype=np.float32)[ones])

    outputs = infer(encoder.encode(examples))
    truth_N = outputs.values.argmax(axis=1)
    scored = TaskOutputs(outputs=outputs, task=TASK)
    return shorter_inputs(examples, encoder, infer, scored, truth_N)


def test_the_shortest_limit_is_advised_that_keeps_the_score(encoder):
    found = advice(encoder, lambda ids: int(ids[11]) % 2 if len(ids) > 12 else 0)
    assert found == (
        "model.max_length = 16 would be enough: dev accuracy 1.0000 instead of 1.0000, with 38 % "
        "of the tokens"
    )


def test_a_model_that_reads_the_end_gets_no_advice(encoder):
    assert advice(encoder, lambda ids: int(ids[-2]) % 2) is None


def test_few_rows_cannot_show_it(encoder):
    assert advice(encoder, lambda _: 0, rows=597) is None
    assert "max_length = 8 " in advice(encoder, lambda _: 0, rows=598)


def test_the_advice_is_a_finding_of_the_run(fitted):  # noqa: F811  (a fixture)
    generator = random.Random(0)

    def rows(count):
        for _ in range(count):
            label = generator.choice(("food", "sport"))
            words = generator.choices(WORDS[label], k=3) + generator.choices(FILLER, k=20)
            yield " ".join(words), label

    run = fitted({"train": list(rows(400)), "dev": list(rows(700))})
    (finding,) = [each for each in read_manifest(run).data.findings if "max_length" in each]
    assert finding.startswith("model.max_length = 8 would be enough: dev accuracy 1.0000")
    assert finding in (run / "train.log").read_text()
