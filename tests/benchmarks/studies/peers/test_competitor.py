"""Each peer's requests and responses are converted correctly."""

import json
from pathlib import Path

import pytest

from pipework.benchmarks.studies.peers.competitor import LaunchContext
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.serving import all_competitors
from pipework.errors import MissingDependencyError

TEXTS = ['he said "$N"', "a\nb", "\u4e00"]
BOTH = [{"label": "good", "score": 0.75}, {"label": "bad", "score": 0.25}]
# The response of each server, reduced to the fields that are read and some around them.
ANSWERS = {
    "pipework": {
        "model": "m",
        "version": "1",
        "predictions": [
            {"label": "good", "score": 0.75, "scores": {"good": 0.75, "bad": 0.25}},
        ],
    },
    "transformers pipeline": {"predictions": [{"good": 0.75, "bad": 0.25}]},
    "onnxruntime": {"predictions": [{"good": 0.75, "bad": 0.25}]},
    "tritonserver": {
        "model_name": "plain",
        "model_version": "1",
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [1, 1], "data": ["good"]},
            {"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [0.75]},
        ],
    },
    "infinity": {"object": "classify", "data": [BOTH], "model": "peer", "usage": {}},
}


def every():
    return list(all_competitors(2))


def family(competitor):
    return next(name for name in ANSWERS if competitor.peer.startswith(name))


def place(folder, port=40123):
    scratch = folder / "scratch"
    scratch.mkdir()
    return LaunchContext(
        run=folder / "run",
        model=folder / "model",
        infinity=folder / "infinity",
        scratch=scratch,
        port=port,
        cores=2,
    )


def test_every_peer_has_several_distinct_settings():
    found = [(competitor.peer, competitor.settings) for competitor in every()]
    assert len(set(found)) == len(found)
    assert {family(competitor) for competitor in every()} == set(ANSWERS)
    peers = {peer for peer, _ in found} - {"pipework"}
    assert min(sum(peer == other for other, _ in found) for peer in peers) >= 2


@pytest.mark.parametrize("competitor", every(), ids=lambda each: f"{each.peer}, {each.settings}")
def test_a_request_is_json_with_the_unchanged_texts(competitor):
    body = json.loads(competitor.request(TEXTS))
    flat = json.dumps(body)
    assert json.dumps(TEXTS)[1:-1] in flat
    if "shape" in flat:
        assert body["inputs"][0]["shape"][0] == 3


@pytest.mark.parametrize("competitor", every(), ids=lambda each: f"{each.peer}, {each.settings}")
def test_a_response_is_converted_to_probabilities_by_label(competitor):
    (row,) = competitor.parse(ANSWERS[family(competitor)])
    assert row in ({"good": 0.75}, {"good": 0.75, "bad": 0.25})
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        competitor.parse({"error": "no"})


def test_the_reason_of_a_failure_contains_no_local_path(tmp_path):
    here = place(tmp_path)
    for path in (here.model, here.run, here.scratch / "server.log"):
        assert str(tmp_path) not in here.hide(f"{path} cannot be read")
    assert here.hide(f"no file {here.model}/config.json") == "no file model/config.json"


def test_a_missing_environment_is_reported_with_its_command(tmp_path):
    with pytest.raises(MissingDependencyError, match="a virtual environment") as raised:
        Environment.INFINITY.python(tmp_path)
    assert raised.value.hint.startswith(f"python -m venv {tmp_path}; {tmp_path}/bin/pip install")
    assert Path(raised.value.hint.split()[-1]).is_file()
