"""The phases of a training run add up to its time, and each is measured."""

import time

import pytest

from pipework.benchmarks.studies.peers.phases import TIMED, WHOLE, Stopwatch, measure_phases
from pipework.train.loop.evaluator import ClassifierEvaluator

EVALUATE = ClassifierEvaluator.evaluate


@pytest.mark.filterwarnings("ignore:lr_scheduler.step")
def test_every_phase_is_measured_and_the_patches_are_removed():
    start = time.perf_counter()
    times = measure_phases("sample", ["train.max_steps=3", "train.precision=fp32"])
    whole = time.perf_counter() - start
    assert set(times.seconds) == {*TIMED, "other"} - {WHOLE}
    assert min(times.seconds.values()) > 0
    assert sum(times.seconds.values()) < whole
    assert sum(times.shares().values()) == pytest.approx(1)
    assert ClassifierEvaluator.evaluate is EVALUATE


def test_a_nested_phase_counts_for_the_outer_phase():
    watch = Stopwatch()
    inner = watch.around("batches", lambda: time.sleep(0.02))
    outer = watch.around("evaluation", inner)
    inner()
    watch.around(WHOLE, outer)()
    assert watch.seconds["evaluation"] >= 0.02
    assert watch.seconds["batches"] == 0
