"""The comparison of servers: choice of settings, stored result, table."""

from itertools import groupby
from types import SimpleNamespace

import pytest

from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.documents.readme import fill
from pipework.benchmarks.studies.peers.serving import (
    PeerServingPlan,
    best_settings,
    compare,
    interleave,
    main,
)
from pipework.benchmarks.studies.records.peer_serving_results import HEAD
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.records.training_results import PIPEWORK
from pipework.errors import ConfigError
from pipework.progress import NullProgress


def searched(result):
    return [trial for trial in result.trials if trial.round == 0]


def test_each_load_is_measured_with_its_fastest_settings(side_by_side):
    several, single = side_by_side.loads
    assert best_settings(searched(side_by_side), side_by_side.candidates) == {
        ("pipework", "as it starts"): [several, single],
        ("a peer", "2 threads"): [several],
        ("a peer", "2 workers"): [single],
    }


def test_settings_with_failed_requests_are_not_chosen(side_by_side):
    losing = [
        trial.model_copy(update={"errors": {"HTTP 500": 1}})
        if trial.settings == "2 threads"
        else trial
        for trial in searched(side_by_side)
    ]
    assert ("a peer", "2 threads") not in best_settings(losing, side_by_side.candidates)


@pytest.mark.parametrize(
    ("same", "failed", "taken"),
    [(200, None, True), (196, None, True), (195, None, False), (200, "it ended with 1", False)],
)
def test_settings_that_disagree_or_failed_are_not_measured(side_by_side, same, failed, taken):
    own, threads, workers, _ = side_by_side.candidates
    answers = threads.answers.model_copy(update={"same": same})
    changed = threads.model_copy(update={"answers": answers, "failed": failed})
    chosen = best_settings(searched(side_by_side), [own, changed, workers])
    assert (("a peer", "2 threads") in chosen) == taken
    several, single = side_by_side.loads
    assert chosen["a peer", "2 workers"] == ([single] if taken else [several, single])


def test_a_disagreeing_peer_is_noted(side_by_side):
    candidate = side_by_side.candidates[1]
    changed = candidate.model_copy(
        update={"answers": candidate.answers.model_copy(update={"same": 150})}
    )
    result = side_by_side.model_copy(update={"candidates": (changed,)})
    remark = "150 of 200 labels equal the checkpoint's, fewer than 98%"
    assert f"a peer, 2 threads, was excluded: {remark}" in result.notes()


def test_a_failure_in_a_round_is_in_the_notes(side_by_side):
    line = "a peer, 2 threads, failed in round 1: it ended with 9"
    result = side_by_side.model_copy(update={"failures": (line,)})
    assert line in result.notes()


def test_medians_and_speedups_are_over_the_rounds_only(side_by_side):
    several, single = side_by_side.loads
    own = side_by_side.figures(PIPEWORK, several)
    assert (own.texts_per_s, own.memory_mib) == (750, 402)
    assert side_by_side.speedup_over(PIPEWORK, "a peer", several) == pytest.approx(750 / 200)
    assert side_by_side.speedup_over(PIPEWORK, "a peer", single) == pytest.approx((10 + 5) / 2)
    assert side_by_side.figures("another", several) is None


def test_a_peer_is_compared_with_the_nearest_measurements_of_pipework(side_by_side):
    several, single = side_by_side.loads
    peer = next(
        trial for trial in side_by_side.trials if trial.peer == "a peer" and trial.round == 1
    )
    own = next(
        trial for trial in side_by_side.trials if trial.peer == PIPEWORK and trial.round == 1
    )
    rates = (500, 900, None, 700, 400)  # pipework's, and of the peer's place
    trials = [
        peer if rate is None else own.model_copy(update={"texts_per_s": rate}) for rate in rates
    ]
    elsewhere = [
        own.model_copy(update={"load": single}),
        own.model_copy(update={"round": 2}),
    ]
    trials[3:3] = elsewhere
    result = side_by_side.model_copy(update={"trials": tuple(trials)})
    assert result.speedup_over(PIPEWORK, "a peer", several) == pytest.approx(800 / 200)


def turns(*peers):
    """The names of the peers in the order of their measurements."""
    return [
        competitor.peer for competitor in interleave([SimpleNamespace(peer=peer) for peer in peers])
    ]


def test_pipework_is_measured_between_every_two_peers():
    assert turns("a", PIPEWORK, "b") == [PIPEWORK, "a", PIPEWORK, "b", PIPEWORK]
    assert turns("b", "a") == ["b", "a"]
    assert turns(PIPEWORK) == [PIPEWORK]


def test_a_result_is_read_back_unchanged(side_by_side, tmp_path):
    write_result(tmp_path / "r.json", side_by_side)
    assert read_stored(tmp_path / "r.json") == side_by_side


def test_the_table_is_sorted_by_rate_and_shows_the_check(side_by_side):
    rows = [dict(zip(HEAD, row, strict=True)) for row in side_by_side.table_rows()]
    assert [(row["load"], row["server"], row["texts/s"]) for row in rows] == [
        ("8 texts per request, 16 clients", "**pipework**", "750"),
        ("8 texts per request, 16 clients", "a peer", "200"),
        ("single texts, 32 clients", "**pipework**", "600"),
        ("single texts, 32 clients", "a peer", "90"),
    ]
    assert [row["best settings"] for row in rows[:2]] == ["onnx-int8-packed", "2 threads"]
    assert rows[0]["labels equal to the checkpoint's"].startswith("199 of 200, ±3e-07")
    assert rows[1]["speedup of pipework"] == "**3.75**"


def test_failures_and_absent_peers_are_noted_below_the_table(side_by_side):
    notes = "\n".join(side_by_side.notes())
    assert "4 settings of 2 servers were tried for 2 s each" in notes
    assert "a peer, 2 workers, fails on a text longer than the model's limit" in notes
    assert "another, as it is, was not measured: it ended with 1" in notes
    assert "triton was not measured: tritonserver is neither on PATH" in notes
    readme = fill("<!-- table:peers_serving -->\n<!-- /table:peers_serving -->", [side_by_side])
    assert all(f"- {note}" in readme for note in side_by_side.notes())


@pytest.mark.slow
def test_real_servers_are_compared_and_stored(exported_run, tmp_path, capsys):
    out = tmp_path / "r.json"
    words = [
        "--run",
        str(exported_run),
        "--name",
        "sample",
        "--seconds",
        "0.3",
        "--search-seconds",
        "0.2",
    ]
    wanted = ["pipework", "onnxruntime fp32, padded, FastAPI, 1 worker"]
    words += ["--rounds", "1", "--infinity", str(tmp_path), "--only", *wanted, "--out", str(out)]
    assert main(words) == 0
    result = read_stored(out)
    assert result.peers == (PIPEWORK, "onnxruntime fp32, padded, FastAPI")
    peers = [candidate.peer for candidate in result.candidates]
    assert peers.count("onnxruntime fp32, padded, FastAPI") == 3
    measured = [(trial.peer, trial.settings) for trial in result.trials if trial.round]
    turns = [peer for (peer, _), _ in groupby(measured)]
    assert len(turns) > 2
    assert [peer == PIPEWORK for peer in turns] == [not n % 2 for n in range(len(turns))]
    assert turns[-1] == PIPEWORK
    for candidate in result.candidates:
        assert candidate.failed is None
        assert (candidate.answers.same, candidate.answers.truncates) == (
            candidate.answers.rows,
            True,
        )
        assert candidate.answers.max_difference < 1e-4
    for load in result.loads:
        assert result.speedup_over(PIPEWORK, "onnxruntime fp32, padded, FastAPI", load) > 0
        own = result.figures(PIPEWORK, load)
        assert own.failed == 0
        assert 50 < own.memory_mib < 2000
        assert own.p50_ms <= own.p99_ms
    assert "**pipework**" in capsys.readouterr().out
    assert str(exported_run) not in out.read_text()


def test_an_unknown_peer_is_reported_before_any_server_starts(run, tmp_path):
    plan = PeerServingPlan(
        run=run,
        name="x",
        infinity=tmp_path,
        seconds=1,
        search_seconds=1,
        rounds=1,
        only=("nobody",),
    )
    with pytest.raises(ConfigError, match="no peer's name contains nobody"):
        compare(plan, (), NullProgress())
