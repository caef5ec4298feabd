"""Servers side by side: which settings are measured, what is stored, what the table says."""

from itertools import groupby
from types import SimpleNamespace

import pytest

from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.peer_serving_results import (
    HEAD,
    Failure,
    lines,
    peer_notes,
    peer_rows,
)
from pipework.benchmarks.studies.peers.serving import Plan, best, between, compare, main
from pipework.benchmarks.studies.readme import fill
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.benchmarks.studies.training_results import PIPEWORK
from pipework.errors import ConfigError
from pipework.progress import Silent


def searched(result):
    return [one for one in result.trials if one.round == 0]


def failure(load, number, settings="2 threads"):
    return Failure(
        peer="a peer", settings=settings, loads=(load,), round=number, reason="it ended with 9"
    )


def test_each_load_is_measured_with_the_settings_that_answered_most_under_it(side_by_side):
    several, single = side_by_side.loads
    assert best(searched(side_by_side), side_by_side.candidates) == {
        ("pipework", "as it starts"): [several, single],
        ("a peer", "2 threads"): [several],
        ("a peer", "2 workers"): [single],
    }


def test_settings_that_lose_requests_are_not_the_best(side_by_side):
    losing = [
        one.model_copy(update={"errors": {"HTTP 500": 1}}) if one.settings == "2 threads" else one
        for one in searched(side_by_side)
    ]
    assert ("a peer", "2 threads") not in best(losing, side_by_side.candidates)


@pytest.mark.parametrize(
    ("same", "failed", "taken"),
    [(200, None, True), (196, None, True), (195, None, False), (200, "it ended with 1", False)],
)
def test_settings_with_other_answers_or_that_failed_are_not_measured(
    side_by_side, same, failed, taken
):
    own, threads, workers, _ = side_by_side.candidates
    answers = threads.answers.model_copy(update={"same": same})
    changed = threads.model_copy(update={"answers": answers, "failed": failed})
    chosen = best(searched(side_by_side), [own, changed, workers])
    assert (("a peer", "2 threads") in chosen) == taken
    several, single = side_by_side.loads
    assert chosen["a peer", "2 workers"] == ([single] if taken else [several, single])


def test_answers_that_are_too_different_are_said(side_by_side):
    one = side_by_side.candidates[1]
    changed = one.model_copy(update={"answers": one.answers.model_copy(update={"same": 150})})
    result = side_by_side.model_copy(update={"candidates": (changed,)})
    said = "150 of 200 labels are the checkpoint's, fewer than 98%"
    assert f"a peer, 2 threads, is not compared: {said}" in peer_notes(result)


def test_a_peer_that_fails_in_a_round_is_in_the_table_with_the_reason_below(side_by_side):
    several, single = side_by_side.loads
    failures = (
        failure(several, 1),
        failure(single, 1, settings="2 workers"),
        failure(single, 2, settings="2 workers"),
    )
    kept = [
        one
        for one in side_by_side.trials
        if not (one.peer == "a peer" and one.round and (one.load == single or one.round == 1))
    ]
    result = side_by_side.model_copy(update={"trials": tuple(kept), "failures": failures})
    rows = [dict(zip(HEAD, row, strict=True)) for row in peer_rows(result)]
    shown = [
        (row["its best settings"], row["texts/s"]) for row in rows if row["server"] == "a peer"
    ]
    assert shown == [
        ("2 threads", "200, failed in 1 of 2 rounds"),
        ("2 workers", "failed in every round"),
    ]
    assert "a peer, 2 threads, failed in round 1: it ended with 9" in peer_notes(result)


def test_the_rounds_alone_are_reported_and_compared_one_by_one(side_by_side):
    several, single = side_by_side.loads
    own = side_by_side.figures(PIPEWORK, several)
    assert (own.texts_per_s, own.memory_mib) == (750, 402)
    assert side_by_side.faster_than(PIPEWORK, "a peer", several) == pytest.approx(750 / 200)
    assert side_by_side.faster_than(PIPEWORK, "a peer", single) == pytest.approx((10 + 5) / 2)
    assert side_by_side.figures("another", several) is None


def test_a_peer_is_compared_with_what_was_measured_around_it(side_by_side):
    several, single = side_by_side.loads
    peer = next(one for one in side_by_side.trials if one.peer == "a peer" and one.round == 1)
    own = next(one for one in side_by_side.trials if one.peer == PIPEWORK and one.round == 1)
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
    assert result.faster_than(PIPEWORK, "a peer", several) == pytest.approx(800 / 200)


def test_rounds_in_which_pipework_failed_are_counted_once(side_by_side):
    several, _ = side_by_side.loads
    twice = [failure(several, 1).model_copy(update={"peer": PIPEWORK})] * 2
    rows = peer_rows(side_by_side.model_copy(update={"failures": tuple(twice)}))
    assert rows[0][4] == "750, failed in 1 of 2 rounds"


def turns(*peers):
    """The peers in their turns, of which nothing but the name is looked at."""
    return [one.peer for one in between([SimpleNamespace(peer=peer) for peer in peers])]


def test_pipework_is_measured_between_every_two():
    assert turns("a", PIPEWORK, "b") == [PIPEWORK, "a", PIPEWORK, "b", PIPEWORK]
    assert turns("b", "a") == ["b", "a"]
    assert turns(PIPEWORK) == [PIPEWORK]


def test_a_result_is_read_as_it_was_written(side_by_side, tmp_path):
    write_result(tmp_path / "r.json", side_by_side)
    assert read_stored(tmp_path / "r.json") == side_by_side


def test_the_table_has_the_fastest_first_and_says_how_each_answers(side_by_side):
    rows = [dict(zip(HEAD, row, strict=True)) for row in peer_rows(side_by_side)]
    assert [(row["load"], row["server"], row["texts/s"]) for row in rows] == [
        ("8 a request, 16 clients", "**pipework**", "750"),
        ("8 a request, 16 clients", "a peer", "200"),
        ("single texts, 32 clients", "**pipework**", "600"),
        ("single texts, 32 clients", "a peer", "90"),
    ]
    assert [row["its best settings"] for row in rows[:2]] == ["onnx-int8-packed", "2 threads"]
    assert rows[0]["labels as the checkpoint's"].startswith("199 of 200, ±3e-07")
    assert rows[1]["pipework is faster"] == "**3.75** times"


def test_what_failed_or_was_not_there_is_said_under_the_table(side_by_side):
    said = "\n".join(peer_notes(side_by_side))
    assert "4 settings of 2 servers were tried, 2 s each" in said
    assert "a peer, 2 workers, fails with a text that is too long" in said
    assert "another, as it is, was not measured: it ended with 1" in said
    assert "triton was not measured: tritonserver is neither on PATH" in said
    readme = fill("<!-- table:peers_serving -->\n<!-- /table:peers_serving -->", [side_by_side])
    assert all(f"- {note}" in readme for note in peer_notes(side_by_side))
    assert len(lines(side_by_side)) == len(peer_rows(side_by_side)) + len(said.splitlines())


@pytest.mark.slow
def test_real_servers_are_compared_and_stored(exported_run, tmp_path, capsys):
    out = tmp_path / "r.json"
    words = [str(exported_run), "sample", "--seconds", "0.3", "--search-seconds", "0.2"]
    wanted = ["pipework", "onnxruntime fp32, padded, FastAPI, 1 worker"]
    words += ["--rounds", "1", "--venvs", str(tmp_path), "--only", *wanted, "--out", str(out)]
    assert main(words) == 0
    result = read_stored(out)
    assert result.peers == (PIPEWORK, "onnxruntime fp32, padded, FastAPI")
    assert len(result.tried("onnxruntime fp32, padded, FastAPI")) == 3
    measured = [(one.peer, one.settings) for one in result.trials if one.round]
    turns = [peer for (peer, _), _ in groupby(measured)]
    assert len(turns) > 2
    assert [peer == PIPEWORK for peer in turns] == [not n % 2 for n in range(len(turns))]
    assert turns[-1] == PIPEWORK
    for one in result.candidates:
        assert one.failed is None
        assert one.answers.right
        assert one.answers.max_difference < 1e-4
        assert str(tmp_path) not in " ".join((*one.command, *one.variables.values()))
    for load in result.loads:
        assert result.faster_than(PIPEWORK, "onnxruntime fp32, padded, FastAPI", load) > 0
        own = result.figures(PIPEWORK, load)
        assert own.failed == 0
        assert 50 < own.memory_mib < 2000
        assert own.p50_ms <= own.p99_ms
    assert "**pipework**" in capsys.readouterr().out
    assert str(exported_run) not in out.read_text()


def test_a_run_of_another_kind_is_refused_before_anything_starts(run, tmp_path):
    plan = Plan(
        run=run, name="x", venvs=tmp_path, seconds=1, search_seconds=1, rounds=1, only=("nobody",)
    )
    with pytest.raises(ConfigError, match="no peer's name holds nobody"):
        compare(plan, Silent())
