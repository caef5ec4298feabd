"""Plots of open-loop levels against the request rate."""

from xml.etree import ElementTree as ET

from pipework.benchmarks.report import open_loop_plots

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    return ["".join(node.itertext()).strip() for node in ET.fromstring(drawn).iter(f"{SVG}text")]


def opened(loaded):
    return [level for level in loaded.levels if level.rate is not None]


def test_the_limits_and_misses_of_an_objective_are_drawn(loaded):
    with_slo = texts(open_loop_plots.latencies(opened(loaded), loaded.slo))
    assert {"p99 limit", "missed", "p50", "p95", "p99"} <= {*with_slo}
    without = texts(open_loop_plots.latencies(opened(loaded), None))
    assert {"p99 limit", "missed"}.isdisjoint(without)


def test_an_objective_that_was_met_has_no_crosses(loaded):
    trials = tuple(trial.model_copy(update={"missed": ()}) for trial in loaded.slo.trials)
    met = loaded.slo.model_copy(update={"trials": trials})
    found = texts(open_loop_plots.latencies(opened(loaded), met))
    assert "p99 limit" in found
    assert "missed" not in found


def test_the_latency_axis_includes_the_largest_limit(loaded):
    limit = loaded.slo.limits[0].model_copy(update={"most_ms": 9000})
    slo = loaded.slo.model_copy(update={"limits": (limit,)})
    assert "10,000" in texts(open_loop_plots.latencies(opened(loaded), slo))
    assert "10,000" not in texts(open_loop_plots.latencies(opened(loaded), loaded.slo))


def test_goodput_is_drawn_against_the_texts_sent(loaded):
    found = texts(open_loop_plots.goodput(opened(loaded)))
    assert {"texts/s sent", "texts/s", "all sent", "answered in time"} <= {*found}
    assert "600" in found  # a tick: the largest rate is 90 requests/s of 8 texts
