"""Each peer is asked in its own words, and its answers are understood."""

import json
import sys
from pathlib import Path

import pytest

from pipework.benchmarks.studies.peers.competitor import Place
from pipework.benchmarks.studies.peers.environments import Environment, main
from pipework.benchmarks.studies.peers.serving import contenders
from pipework.errors import MissingDependencyError

TEXTS = ['he said "$N"', "a\nb", "\u4e00"]
BOTH = [{"label": "good", "score": 0.75}, {"label": "bad", "score": 0.25}]
# As each server answered, cut to what is read and what stands around it.
ANSWERS = {
    "pipework": {
        "model": "m",
        "version": "1",
        "predictions": [
            {"label": "good", "score": 0.75, "scores": {"good": 0.75, "bad": 0.25}},
        ],
    },
    "transformers pipeline": {"predictions": [BOTH]},
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
    "LitServe": {"predictions": [BOTH]},
    "MLServer": {
        "model_name": "peer",
        "outputs": [
            {
                "name": "output",
                "shape": [1, 1],
                "datatype": "BYTES",
                "parameters": {"content_type": "hg_jsonlist"},
                "data": ['{"label": "good", "score": 0.75}'],
            }
        ],
    },
}


def every():
    return list(contenders(2))


def family(contender):
    return next(name for name in ANSWERS if contender.peer.startswith(name))


def place(folder, port=40123):
    scratch = folder / "scratch"
    scratch.mkdir()
    return Place(
        run=folder / "run",
        model=folder / "model",
        venvs=folder / "venvs",
        scratch=scratch,
        port=port,
        cores=2,
    )


def test_all_peers_are_there_with_several_settings_each_once():
    found = [(one.peer, one.settings) for one in every()]
    assert len(set(found)) == len(found)
    assert {family(one) for one in every()} == set(ANSWERS)
    peers = {peer for peer, _ in found} - {"pipework"}
    assert min(sum(peer == other for other, _ in found) for peer in peers) >= 2


@pytest.mark.parametrize("contender", every(), ids=lambda one: f"{one.peer}, {one.settings}")
def test_a_request_is_json_with_the_texts_as_they_are(contender):
    body = json.loads(contender.request(TEXTS))
    flat = json.dumps(body)
    assert json.dumps(TEXTS)[1:-1] in flat
    if "shape" in flat:
        assert body["inputs"][0]["shape"][0] == 3


@pytest.mark.parametrize("contender", every(), ids=lambda one: f"{one.peer}, {one.settings}")
def test_an_answer_becomes_a_probability_by_label(contender):
    (row,) = contender.parse(ANSWERS[family(contender)])
    assert row in ({"good": 0.75}, {"good": 0.75, "bad": 0.25})
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        contender.parse({"error": "no"})


def test_a_command_is_stored_without_the_paths_of_this_machine(tmp_path):
    here = place(tmp_path)
    for contender in every():
        if contender.environment is Environment.OWN:
            launch = contender.launch(here)
            words = [here.hide(word) for word in launch.words]
            for path in (tmp_path, sys.prefix, Path(__file__).parents[4]):
                assert str(path) not in " ".join(words)
            assert "PORT" in words


def test_a_peer_without_its_environment_says_how_to_make_it(tmp_path):
    for environment in (Environment.INFINITY, Environment.LITSERVE, Environment.MLSERVER):
        with pytest.raises(MissingDependencyError, match=str(environment)) as raised:
            environment.versions(tmp_path)
        assert (
            raised.value.hint
            == f"python -m pipework.benchmarks.studies.peers.environments {tmp_path}"
        )


def test_the_own_environment_knows_its_versions(tmp_path):
    assert Environment.OWN.versions(tmp_path)["torch"].startswith("2.")


def test_an_environment_of_other_pins_is_not_ready(tmp_path):
    (tmp_path / "infinity").mkdir()
    (tmp_path / "infinity" / "ready").write_text("infinity-emb==0.0.1\n")
    with pytest.raises(MissingDependencyError):
        Environment.INFINITY.python(tmp_path)


def test_an_environment_that_is_ready_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    pins = tmp_path / "pins"
    pins.mkdir()
    for name in ("infinity", "litserve", "mlserver"):
        (pins / f"{name}.txt").write_text(f"{name}==1\n")
        (tmp_path / name).mkdir()
        (tmp_path / name / "ready").write_text(f"{name}==1\n")
    monkeypatch.setattr("pipework.benchmarks.studies.peers.environments.PINS", pins)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "infinity: ready\nlitserve: ready\nmlserver: ready\n"
    assert Environment.INFINITY.python(tmp_path) == tmp_path / "infinity" / "bin" / "python"
