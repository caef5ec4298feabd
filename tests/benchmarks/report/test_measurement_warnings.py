"""Notes report the SLO verdict and doubts about the figures."""

from pipework.benchmarks.load.slo import judge_rates, parse_slo
from pipework.benchmarks.report.measurement_warnings import notes


def titles(result):
    return [note.title for note in notes(result)]


def test_the_slo_verdict_comes_first_and_problems_are_bad(loaded):
    all_notes = notes(loaded)
    assert [title.partition(" requests")[0] for title in titles(loaded)] == [
        "SLO met, p99 <= 50 ms",
        "23 of 2,540",
        "The load generator is fast enough",
        "Requests were sent late",
    ]
    assert [note.bad for note in all_notes] == [False, True, False, True]
    assert (
        "the largest rate is 60 requests/s (480 texts/s); missed at 90 requests/s"
        in all_notes[0].text
    )


def test_a_result_without_problems_has_no_notes(served):
    assert notes(served.model_copy(update={"levels": served.levels[:4]})) == []


def test_a_generator_near_its_limit_is_the_bottleneck(served):
    peak = max(level.requests_per_s for level in served.levels)
    calm = served.model_copy(update={"levels": served.levels[:4], "generator_limit": peak * 2})
    assert titles(calm) == ["The load generator is fast enough"]
    near = calm.model_copy(update={"generator_limit": served.levels[3].requests_per_s * 1.2})
    (note,) = notes(near)
    assert note.bad
    assert note.title == "The load generator is the bottleneck"
    assert "8 clients" in note.text


def test_levels_whose_windows_differ_are_named(served):
    wild = served.levels[1].model_copy(update={"stable": False})
    (note,) = notes(served.model_copy(update={"levels": (served.levels[0], wild)}))
    assert note.title == "No steady state"
    assert "2 clients" in note.text
    assert "1 client" not in note.text


def test_a_missed_objective_lists_the_violations(served, open_level):
    levels = (open_level(50, 20), open_level(100, 80))
    slo = judge_rates(levels, parse_slo(["p99=50ms"]))
    (note,) = notes(served.model_copy(update={"levels": levels, "slo": slo}))
    assert note.bad
    assert note.title == "SLO missed, p99 <= 50 ms"
    assert note.text == (
        "50 requests/s meets it; 100 requests/s misses it: p99 is 80 ms, limit 50 ms"
    )
