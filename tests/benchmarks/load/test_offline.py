"""Stages are measured one call at a time, in the order of the examples."""

import time

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework.benchmarks.load import offline
from pipework.benchmarks.load.offline import WARMUP_CALLS, measure_engine, measure_tokenizing
from pipework.data.examples import Example
from pipework.text.encoding import TextEncoder

EXAMPLES = [Example(text=f"w{number}") for number in range(5)]


class SlowEngine:
    """Takes 2 ms for each input."""

    def __init__(self):
        self.seen = []

    def infer(self, encodings):
        self.seen.append([int(one.ids[0]) for one in encodings])
        time.sleep(0.002 * len(encodings))
        return np.zeros((len(encodings), 2), np.float32)


@pytest.fixture
def encoder():
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(5)}))
    tokenizer.pre_tokenizer = Whitespace()
    return TextEncoder(tokenizer, max_length=8, type_ids=False)


def test_batches_run_in_the_order_of_arrival_and_start_again_at_the_end(encoder):
    engine = SlowEngine()
    measure_engine("slow", engine, encoder, EXAMPLES, batch=2, duration_s=0.02)
    assert engine.seen[:4] == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_figures_are_of_calls_after_the_warm_up(encoder):
    engine = SlowEngine()
    found = measure_engine("slow", engine, encoder, EXAMPLES, batch=4, duration_s=0.1)
    assert found.calls == len(engine.seen) - WARMUP_CALLS
    assert found.texts == 4 * found.calls
    assert (found.stage, found.batch) == ("slow", 4)
    assert found.latency_ms.p50 >= 8
    assert found.texts_per_s == pytest.approx(found.texts / found.duration_s, rel=0.02)
    assert found.texts_per_s <= 500


def test_tokenizing_is_a_stage_of_its_own(encoder):
    found = measure_tokenizing(encoder, EXAMPLES, batch=32, duration_s=0.02)
    assert (found.stage, found.batch) == ("tokenizing", 32)
    assert found.calls >= 1


def test_the_number_of_calls_is_bounded(encoder, monkeypatch):
    monkeypatch.setattr(offline, "MAX_CALLS", 3)
    assert measure_tokenizing(encoder, EXAMPLES, batch=1, duration_s=60).calls == 3
