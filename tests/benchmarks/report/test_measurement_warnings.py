"""What spoils or judges figures is said beside them."""

from pipework.benchmarks.load.slo import asked, parse_slo
from pipework.benchmarks.report.measurement_warnings import notes


def titles(result):
    return [note.title for note in notes(result)]


def test_what_was_asked_comes_first_and_trouble_is_bad(loaded):
    found = notes(loaded)
    assert [title.partition(" requests")[0] for title in titles(loaded)] == [
        "SLO met, p99 at most 50 ms",
        "23 of 2,540",
        "The generator keeps up",
        "Requests were sent late",
    ]
    assert [note.bad for note in found] == [False, True, False, True]
    assert (
        "the largest rate is 60 requests/s (480 texts/s); missed at 90 requests/s" in found[0].text
    )


def test_a_quiet_result_has_no_notes(served):
    assert notes(served.model_copy(update={"levels": served.levels[:4]})) == []


def test_a_generator_near_its_limit_is_the_bottleneck(served):
    peak = max(level.requests_per_s for level in served.levels)
    calm = served.model_copy(update={"levels": served.levels[:4], "generator_limit": peak * 2})
    assert titles(calm) == ["The generator keeps up"]
    near = calm.model_copy(update={"generator_limit": served.levels[3].requests_per_s * 1.2})
    (note,) = notes(near)
    assert note.bad
    assert note.title == "The generator is the bottleneck"
    assert "8 clients" in note.text


def test_levels_whose_windows_differ_are_named(served):
    wild = served.levels[1].model_copy(update={"stable": False})
    (note,) = notes(served.model_copy(update={"levels": (served.levels[0], wild)}))
    assert note.title == "The server was not steady"
    assert "2 clients" in note.text
    assert "1 client" not in note.text


def test_a_missed_objective_says_by_what(served, open_level):
    levels = (open_level(50, 20), open_level(100, 80))
    slo = asked(levels, parse_slo(["p99=50ms"]))
    (note,) = notes(served.model_copy(update={"levels": levels, "slo": slo}))
    assert note.bad
    assert note.title == "SLO missed, p99 at most 50 ms"
    assert note.text == ("50 requests/s meets it; 100 requests/s misses it: p99 80 ms, wanted 50")
