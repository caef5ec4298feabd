import time
from threading import Thread

import pytest

from pipework.serve.request.context import StageTimings
from pipework.serve.request.statistics import BUCKETS_S, Statistics, Totals


@pytest.fixture
def statistics():
    return Statistics()


def test_a_new_version_has_counted_nothing(statistics):
    totals = statistics.totals
    assert (totals.answered, totals.failed, totals.texts, totals.last_s) == (0, 0, 0, 0.0)
    assert {name: sum(counts) for name, counts in totals.histograms.items()} == dict.fromkeys(
        ("tokenize", "queue", "infer", "decode"), 0
    )
    assert totals == Totals()
    assert totals.seconds == StageTimings().by_stage()


def test_successful_requests_are_summed_by_stage(statistics):
    before_s = time.time()
    statistics.record_success(3, StageTimings(tokenize_s=1, queue_s=2, infer_s=3, decode_s=4))
    statistics.record_success(2, StageTimings(infer_s=0.5))
    totals = statistics.totals
    assert (totals.answered, totals.failed, totals.texts) == (2, 0, 5)
    assert totals.seconds == {"tokenize": 1, "queue": 2, "infer": 3.5, "decode": 4}
    assert totals.answered_s == pytest.approx(10.5)
    assert before_s <= totals.last_s <= time.time()


def test_a_failed_request_does_not_count_as_answered(statistics):
    statistics.record_failure(0.25)
    statistics.record_failure(0.5)
    totals = statistics.totals
    assert (totals.answered, totals.failed, totals.failed_s) == (0, 2, 0.75)
    assert (totals.texts, totals.answered_s, totals.last_s) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (BUCKETS_S[0], 0),
        (BUCKETS_S[3], 3),
        (BUCKETS_S[3] * 1.001, 4),
        (BUCKETS_S[-1], len(BUCKETS_S) - 1),
        (BUCKETS_S[-1] * 2, len(BUCKETS_S)),
    ],
)
def test_a_bucket_includes_its_upper_bound(statistics, seconds, bucket):
    statistics.record_success(1, StageTimings(queue_s=seconds))
    counts = statistics.totals.histograms["queue"]
    assert len(counts) == len(BUCKETS_S) + 1
    assert [index for index, count in enumerate(counts) if count] == [bucket]


def test_the_bounds_of_the_buckets_increase():
    assert list(BUCKETS_S) == sorted({*BUCKETS_S})


def test_totals_do_not_change_after_they_were_read(statistics):
    before = statistics.totals
    statistics.record_success(1, StageTimings(infer_s=1))
    assert before.answered == 0
    assert sum(before.histograms["infer"]) == 0


def test_no_request_of_several_threads_is_lost(statistics):
    def record():
        for _ in range(500):
            statistics.record_success(1, StageTimings(infer_s=1))
            statistics.record_failure(1)

    threads = [Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = statistics.totals
    assert (totals.answered, totals.failed, sum(totals.histograms["infer"])) == (2000, 2000, 2000)
    assert totals.answered_s == 2000
