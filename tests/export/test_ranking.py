import numpy as np
import pytest

from pipework.export.ranking import BATCH, CALLS, ROUNDS, measure
from pipework.progress import NullProgress
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

ROWS = [Encoding(ids=np.arange(4, dtype=np.int32), type_ids=None)] * 20


class Clock:
    """A clock that only the fake engines advance."""

    now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    fake_clock = Clock()
    monkeypatch.setattr("pipework.export.ranking.time", fake_clock)
    return fake_clock


class Timed:
    """An engine with a fixed time per call that counts how often it is opened."""

    processor = "a kind"

    def __init__(self, clock, delay_s):
        self.clock = clock
        self.delay_s = delay_s
        self.opened = 0
        self.open = 0
        self.sizes = set()

    def __call__(self):
        self.opened += 1
        self.open += 1
        return self

    def infer(self, encodings):
        assert self.open == 1
        self.sizes.add(len(encodings))
        self.clock.sleep(self.delay_s)
        return Outputs.of(np.zeros((len(encodings), 2), np.float32))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open -= 1


def test_engines_take_turns_and_are_closed_in_between(clock):
    engines = {"slow": Timed(clock, 0.02), "fast": Timed(clock, 0.002)}
    found = measure(engines, ROWS, 0.3, NullProgress())
    assert [engine.opened for engine in engines.values()] == [ROUNDS, ROUNDS]
    assert found["fast"].texts_per_s == pytest.approx(10 * found["slow"].texts_per_s, rel=0.05)
    assert found["slow"].p50_ms == pytest.approx(20)


def test_speed_is_measured_in_batches_of_eight_and_with_single_texts(clock):
    engine = Timed(clock, 0.0005)
    found = measure({"one": engine}, ROWS, 0.2, NullProgress())["one"]
    assert engine.sizes == {BATCH, 4, 1}
    assert (found.batch, found.rows, found.processor) == (8, 20, "a kind")


def test_an_engine_slower_than_the_measuring_time_runs_once(clock):
    found = measure({"one": Timed(clock, 0.05)}, ROWS[:1], 0.01, NullProgress())["one"]
    assert found.texts_per_s == pytest.approx(1 / 0.05)


def test_compiling_for_new_shapes_is_excluded_from_the_speed(clock):
    class Compiling(Timed):
        def __call__(self):
            self.sizes.clear()
            return super().__call__()

        def infer(self, encodings):
            length = len(encodings[0])
            if length not in self.sizes:
                self.clock.sleep(0.05)
            self.sizes.add(length)
            return super().infer(encodings)

    rows = [
        Encoding(ids=np.arange(4 + n // BATCH, dtype=np.int32), type_ids=None)
        for n in range(8 * BATCH)
    ]
    found = measure({"one": Compiling(clock, 0.004)}, rows, 3.6, NullProgress())["one"]
    assert found.p50_ms < 25
    assert found.texts_per_s > BATCH / 0.008


def test_the_number_of_measured_rows_is_limited(clock):
    engine = Timed(clock, 0.0001)
    found = measure({"one": engine}, ROWS[:1] * 3000, 0.02, NullProgress())["one"]
    assert found.rows == CALLS * BATCH


class Jumpy(Timed):
    """An engine that other programs slow down in some rounds."""

    def __call__(self):
        engine = super().__call__()
        self.delay_s *= 3 if self.opened % 2 else 1 / 3
        return engine


def test_the_variation_of_the_speed_between_rounds_is_recorded(clock):
    steady, jumpy = Timed(clock, 0.01), Jumpy(clock, 0.01)
    speeds = measure({"steady": steady, "jumpy": jumpy}, ROWS, 1.0, NullProgress())
    assert speeds["steady"].variation == pytest.approx(0, abs=0.01)
    assert speeds["jumpy"].variation > 1
