"""The phases of a training add up to it, and each was seen."""

import time

import pytest

from pipework.benchmarks.studies.peers.phases import PLACES, WHOLE, Stopwatch, measure
from pipework.train.loop.evaluator import Judge

EVALUATE = Judge.evaluate


@pytest.mark.filterwarnings("ignore:lr_scheduler.step")
def test_every_phase_of_a_training_is_seen_and_the_loop_is_left_as_it_was():
    start = time.perf_counter()
    found = measure("sample", ["train.max_steps=3", "train.precision=fp32"])
    whole = time.perf_counter() - start
    assert set(found.seconds) == {*PLACES, "other"} - {WHOLE}
    assert min(found.seconds.values()) > 0
    assert sum(found.seconds.values()) < whole
    assert sum(found.shares().values()) == pytest.approx(1)
    assert Judge.evaluate is EVALUATE


def test_a_phase_inside_another_counts_for_the_outer_one():
    watch = Stopwatch()
    inner = watch.around("batches", lambda: time.sleep(0.02))
    outer = watch.around("evaluation", inner)
    inner()
    watch.around(WHOLE, outer)()
    assert watch.seconds["evaluation"] >= 0.02
    assert watch.seconds["batches"] == 0
