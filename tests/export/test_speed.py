import threading

import numpy as np
import pytest

from pipework.export.speed import BATCH, CALLS, FEWEST_STEPS, ServedEngine
from pipework.export.speed import measure as measure_served
from pipework.progress import NullProgress
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

ROWS = [Encoding(ids=np.arange(4, dtype=np.int32), type_ids=None)] * 20


class Clock:
    """A clock that only the fake engines advance."""

    now_s = busy_s = 0.0

    def perf_counter(self):
        return self.now_s

    def process_time(self):
        return self.busy_s

    def sleep(self, seconds, busy_s=0.0):
        self.now_s += seconds
        self.busy_s += busy_s


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    fake_clock = Clock()
    monkeypatch.setattr("pipework.export.speed.time", fake_clock)
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
        self.calls = 0

    def __call__(self):
        self.opened += 1
        self.open += 1
        return self

    def infer(self, encodings):
        assert self.open
        self.calls += 1
        self.sizes.add(len(encodings))
        self.clock.sleep(self.delay_s, busy_s=self.delay_s / 2)
        return Outputs.of(np.zeros((len(encodings), 2), np.float32))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open -= 1


def measure(openers, rows, seconds):
    engines = {name: ServedEngine(opener=opener) for name, opener in openers.items()}
    return measure_served(engines, rows, seconds, NullProgress())


def test_engines_take_turns_with_the_first_and_are_closed_afterwards(clock):
    engines = {"slow": Timed(clock, 0.02), "fast": Timed(clock, 0.002), "other": Timed(clock, 0.01)}
    found = measure(engines, ROWS, 0.3)
    assert [(engine.opened, engine.open) for engine in engines.values()] == [(1, 0)] * 3
    assert found["fast"].texts_per_s == pytest.approx(10 * found["slow"].texts_per_s)
    assert found["slow"].p50_ms == pytest.approx(20)
    assert found["slow"].cpu_ms == pytest.approx(20 / 2 / BATCH)
    assert found["fast"].interval == pytest.approx([found["fast"].texts_per_s] * 2)


def test_the_engines_of_a_server_compute_at_the_same_time(clock):
    met = threading.Barrier(2, timeout=10)

    class Meeting(Timed):
        def infer(self, encodings):
            if len(encodings) > 1:
                met.wait()
            return super().infer(encodings)

    engine = Meeting(clock, 0.001)
    served = ServedEngine(opener=engine, instances=2)
    found = measure_served({"one": served}, ROWS[:16], 0.01, NullProgress())["one"]
    assert (found.instances, engine.opened, engine.open) == (2, 2, 0)


def test_speed_is_measured_in_batches_of_eight_and_with_single_texts(clock):
    engine = Timed(clock, 0.0005)
    found = measure({"one": engine}, ROWS, 0.2)["one"]
    assert engine.sizes == {BATCH, 4, 1}
    assert (found.batch, found.rows, found.processor) == (8, 20, "a kind")


def test_an_engine_slower_than_the_measuring_time_has_an_interval(clock):
    engine = Timed(clock, 0.05)
    found = measure({"one": engine}, ROWS[:1], 0.01)["one"]
    assert found.texts_per_s == pytest.approx(1 / 0.05)
    assert engine.calls == 2 * FEWEST_STEPS + 3  # warm-up, and single texts


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
    found = measure({"one": Compiling(clock, 0.004)}, rows, 3.6)["one"]
    assert found.p50_ms < 25
    assert found.texts_per_s > BATCH / 0.008


def test_the_number_of_measured_rows_is_limited(clock):
    engine = Timed(clock, 0.0001)
    found = measure({"one": engine}, ROWS[:1] * 3000, 0.02)["one"]
    assert found.rows == CALLS * BATCH


def test_programs_that_disturb_a_measurement_widen_its_interval_and_change_no_rank(clock):
    class Disturbed(Timed):
        def infer(self, encodings):
            self.clock.sleep(self.delay_s * rng.exponential(2))
            return super().infer(encodings)

    rng = np.random.default_rng(0)
    engines = {name: Disturbed(clock, ms / 1000) for name, ms in (("a", 5), ("b", 5), ("c", 1))}
    found = measure(engines, ROWS, 2.0)
    assert found["a"].variation > 0.05
    assert found["b"].interval[1] > found["a"].interval[0]
    assert found["a"].interval[1] > found["b"].interval[0]
    assert found["c"].interval[0] > found["a"].interval[1]
