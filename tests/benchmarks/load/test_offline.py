"""Offline stages are measured call by call, in the order of the examples."""

import time

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework.benchmarks.load import offline
from pipework.benchmarks.load.offline import TOKENIZING, WARMUP_CALLS, measure
from pipework.data.examples import Example
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import TextEncoder

EXAMPLES = [Example(text=f"w{number}") for number in range(5)]


class SlowEngine:
    """Takes 2 ms for each input."""

    def __init__(self):
        self.seen = []

    def infer(self, encodings):
        self.seen.append([int(encoding.ids[0]) for encoding in encodings])
        time.sleep(0.002 * len(encodings))
        return Outputs.of(np.zeros((len(encodings), 2), np.float32))


@pytest.fixture
def encoder():
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(5)}))
    tokenizer.pre_tokenizer = Whitespace()
    return TextEncoder(tokenizer, max_length=8, type_ids=False)


def test_batches_follow_the_order_of_the_examples_cyclically(encoder):
    engine = SlowEngine()
    measure(engine.infer, encoder.encode(EXAMPLES), "slow", 2, 0.02)
    assert engine.seen[:4] == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_warm_up_calls_are_not_counted(encoder):
    engine = SlowEngine()
    level = measure(engine.infer, encoder.encode(EXAMPLES), "slow", 4, 0.1)
    assert level.calls == len(engine.seen) - WARMUP_CALLS
    assert level.texts == 4 * level.calls
    assert (level.stage, level.batch) == ("slow", 4)
    assert level.latency_ms.p50 >= 8
    assert level.texts_per_s == pytest.approx(level.texts / level.duration_s, rel=0.02)
    assert level.texts_per_s <= 500


def test_tokenizing_is_measured_as_its_own_stage(encoder):
    level = measure(encoder.encode, EXAMPLES, TOKENIZING, 32, 0.02)
    assert (level.stage, level.batch) == ("tokenizing", 32)
    assert level.calls >= 1


def test_the_number_of_calls_is_bounded(encoder, monkeypatch):
    monkeypatch.setattr(offline, "MAX_CALLS", 3)
    assert measure(encoder.encode, EXAMPLES, TOKENIZING, 1, 60).calls == 3
