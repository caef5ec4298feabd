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
        "Requests were sent late",
    ]
    assert [note.bad for note in all_notes] == [False, True, True]
    assert (
        "the largest rate is 60 requests/s (480 texts/s); missed at 90 requests/s"
        in all_notes[0].text
    )


def test_a_result_without_problems_has_no_notes(served):
    assert notes(served.model_copy(update={"levels": served.levels[:4]})) == []


def test_a_generator_that_uses_a_whole_core_is_the_bottleneck(served):
    levels = [
        level.model_copy(update={"generator_cores": cores, "server": None})
        for level, cores in zip(served.levels[:4], (0.2, 0.4, 0.7, 0.95), strict=True)
    ]
    assert titles(served.model_copy(update={"levels": tuple(levels[:3])})) == []
    (note,) = notes(served.model_copy(update={"levels": tuple(levels)}))
    assert note.bad
    assert note.title == "The load generator is the bottleneck"
    assert "8 clients" in note.text


def test_a_missed_objective_lists_the_violations(served, open_level):
    levels = (open_level(50, 20), open_level(100, 80))
    slo = judge_rates(levels, parse_slo(["p99=50ms"]))
    (note,) = notes(served.model_copy(update={"levels": levels, "slo": slo}))
    assert note.bad
    assert note.title == "SLO missed, p99 <= 50 ms"
    assert note.text == (
        "50 requests/s meets it; 100 requests/s misses it: p99 is 80 ms, limit 50 ms"
    )
