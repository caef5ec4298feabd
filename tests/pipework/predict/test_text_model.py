"""From texts to predictions, with an engine that counts tokens."""

import threading
import time
from itertools import count, islice
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework.data.examples import Example
from pipework.errors import InputError
from pipework.predict.text_model import EngineModel, TextCodec, predict_stream
from pipework.run_folder.files import FileRecord
from pipework.run_folder.manifest import Input
from pipework.scoring.evaluation import CHUNK
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.text.encoding import TextEncoder

TASK = SingleLabelTask(labels=("long", "short"), metric=Metric.ACCURACY)


class CountingEngine:
    """Predicts "long" for more than two tokens."""

    closed = False
    batches: list[int]

    def __init__(self):
        self.batches = []
        self.running = 0

    def infer(self, encodings):
        self.running += 1
        assert self.running == 1, "one batch at a time"
        time.sleep(0.001)
        self.batches.append(len(encodings))
        tokens_N = np.array([len(encoding) for encoding in encodings], np.float32)
        self.running -= 1
        return Outputs.of(np.stack([tokens_N, np.full(len(tokens_N), 2.5, np.float32)], axis=1))

    def close(self):
        self.closed = True


@pytest.fixture
def model():
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    record = FileRecord(path="tokenizer.json", sha256="0" * 64, size=1)
    input_ = Input(fields=("text",), tokenizer=record, max_length=4, pad_id=0, type_ids=False)
    codec = TextCodec(
        SimpleNamespace(input=input_, task=TASK, windows=None),
        TextEncoder(tokenizer, max_length=4, type_ids=False),
    )
    return EngineModel(codec, CountingEngine())


def test_predictions_have_labels_and_marks_of_truncation(model):
    short, long = model.predict([Example(text="a a"), Example(text="a a a a a")])
    assert (short.label, short.truncated) == ("short", False)
    assert (long.label, long.truncated) == ("long", True)
    (best,) = model.predict([Example(text="a")], top_k=1)
    assert [*best.scores] == ["short"]
    columns = model.columns([Example(text="a a"), Example(text="a a a a a")])
    assert columns["predicted_label"].values == ["short", "long"]
    assert columns["predicted_score"].values == [short.score, long.score]
    assert columns["truncated"].values == [False, True]


def test_no_inputs_have_no_predictions(model):
    assert model.predict([]) == []
    assert model.columns([])["predicted_label"].values == []


def test_an_input_that_does_not_fit_is_named_by_its_index(model):
    with pytest.raises(InputError, match=r"^input 1: found a text_pair, but this model classifies"):
        model.codec.fit([Example(text="a"), Example(text="a", text_pair="b")])


def test_a_stream_is_predicted_in_order_and_read_in_chunks(model):
    taken = []

    def endless():
        for number in count():
            taken.append(number)
            yield Example(text=" ".join("a" * (number % 5)))

    for number, (example, prediction) in enumerate(
        islice(predict_stream(model, endless()), CHUNK + 1)
    ):
        assert len(example.text.split()) == number % 5
        assert prediction.label == ("long" if number % 5 > 2 else "short")
    assert len(taken) == 2 * CHUNK
    assert model.engine.batches == [CHUNK, CHUNK]


def test_threads_use_the_engine_one_after_the_other(model):
    threads = [
        threading.Thread(target=model.predict, args=([Example(text="a")] * 3,)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.engine.batches == [3] * 8
    model.close()
    assert model.engine.closed
