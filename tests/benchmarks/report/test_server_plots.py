"""Plots of the stages of a request and the resources of the server."""

from xml.etree import ElementTree as ET

from pipework.benchmarks.report.server_plots import OTHER, resource_use, stage_breakdown

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    return ["".join(node.itertext()).strip() for node in ET.fromstring(drawn).iter(f"{SVG}text")]


def test_each_level_is_divided_into_its_stages_and_the_rest(loaded):
    found = texts(stage_breakdown(loaded.levels))
    assert {"tokenize", "queue", "infer", "decode", OTHER} <= {*found}
    assert sum("client" in text for text in found) == 3
    assert "20 requests/s" in found


def test_a_level_without_successful_requests_is_drawn(loaded):
    failed = loaded.levels[0].model_copy(update={"latency_ms": None})
    assert OTHER in texts(stage_breakdown([failed]))


def test_the_resources_of_each_level_are_labelled(loaded):
    measured = [level for level in loaded.levels if level.server is not None]
    found = texts(resource_use(measured))
    assert found.count("1.80") == len(measured)
    for level in measured:
        assert f"{level.server.peak_mib:,.0f}" in found
    assert {"CPU cores used", "peak MiB"} <= {*found}


def test_an_idle_server_is_drawn(loaded):
    level = loaded.levels[0]
    idle = level.server.model_copy(update={"cores": 0.0, "peak_mib": 0.0})
    assert "0.00" in texts(resource_use([level.model_copy(update={"server": idle})]))
