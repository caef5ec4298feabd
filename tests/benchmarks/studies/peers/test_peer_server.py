"""Servers are started, asked, compared with the checkpoint, weighed and stopped, for real."""

import json
import math
import socket

import onnx
import pytest

from pipework.benchmarks.studies.peers.competitor import Contender, Launch, Place, own_server
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.fastapi_peers import onnxruntime_peers, transformers_peers
from pipework.benchmarks.studies.peers.infinity import link
from pipework.benchmarks.studies.peers.model_folder import GRAPH, GRAPHS, write_model_folder
from pipework.benchmarks.studies.peers.peer_server import PeerServer, processes
from pipework.benchmarks.studies.peers.reference import Reference
from pipework.benchmarks.studies.peers.triton_peers import triton_peers
from pipework.errors import MissingDependencyError, NotReadyError
from pipework.serve.triton.installation import Installation


@pytest.fixture(scope="module")
def model(exported_run, tmp_path_factory):
    return write_model_folder(exported_run, tmp_path_factory.mktemp("peer") / "model")


@pytest.fixture(scope="module")
def reference(exported_run):
    return Reference.of(exported_run)


def place(run, model, scratch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return Place(run=run, model=model, venvs=scratch, scratch=scratch, port=port, cores=2)


def started(contender, run, model, scratch):
    here = place(run, model, scratch)
    return PeerServer(contender, here, contender.launch(here))


def checked(contender, run, model, scratch, reference):
    with started(contender, run, model, scratch) as server:
        assert server.memory_mib() > 20
        return reference.check(server)


def of(contenders, part):
    return next(one for one in contenders if part in one.settings)


REAL = {
    "onnxruntime": of(onnxruntime_peers(2, "fp32"), "text by text"),
    "onnxruntime, a worker a core": of(
        onnxruntime_peers(2, "fp32"), "2 workers of 1, a request a batch"
    ),
    "transformers": of(transformers_peers(2, "float32"), "a request a batch"),
    "pipework": next(own_server()),
}


@pytest.mark.parametrize("contender", REAL.values(), ids=REAL)
def test_a_server_answers_as_the_checkpoint(contender, exported_run, model, tmp_path, reference):
    answers = checked(contender, exported_run, model, tmp_path, reference)
    assert answers.right
    assert answers.max_difference < 1e-4
    assert answers.accuracy == answers.checkpoint_accuracy


@pytest.mark.parametrize("part", ["no dynamic", "one batch"])
def test_a_plain_model_of_triton_answers_as_the_checkpoint(
    part, exported_run, model, tmp_path, reference
):
    try:
        Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    contender = of(triton_peers(2, "fp32"), part)
    answers = checked(contender, exported_run, model, tmp_path, reference)
    assert answers.right
    assert answers.max_difference < 1e-4


def test_onnxruntime_in_int8_answers_nearly_as_the_checkpoint(
    exported_run, model, tmp_path, reference
):
    contender = of(onnxruntime_peers(2, "int8"), "1 worker of 2, a request a batch")
    answers = checked(contender, exported_run, model, tmp_path, reference)
    assert answers.equal
    assert answers.truncates
    assert 1e-5 < answers.max_difference < 0.2


def test_the_integer_graph_multiplies_in_integers_with_a_scale_for_each_channel(model):
    graph = onnx.load(model / GRAPHS / GRAPH["int8"]).graph
    kinds = [node.op_type for node in graph.node]
    assert "MatMulInteger" in kinds
    scales = [one for one in graph.initializer if one.name.endswith("_scale")]
    assert max(math.prod(one.dims) for one in scales) > 1


@pytest.mark.parametrize("graph", GRAPH.values())
def test_infinity_sees_the_one_graph_that_it_is_to_open(graph, model, tmp_path):
    link(model, graph, tmp_path)
    assert [path.name for path in tmp_path.rglob("*.onnx")] == [graph]
    assert (tmp_path / "tokenizer.json").is_file()
    assert (tmp_path / graph).read_bytes() == (model / GRAPHS / graph).read_bytes()


def test_a_server_with_other_weights_is_found_out(exported_run, model, tmp_path, reference):
    copy, scratch = tmp_path / "copy", tmp_path / "scratch"
    copy.mkdir()
    scratch.mkdir()
    config = json.loads((model / "config.json").read_text())
    labels = [*config["id2label"].values()]
    config["id2label"] = {str(row): label for row, label in enumerate(reversed(labels))}
    for path in model.iterdir():
        (copy / path.name).symlink_to(path)
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config))
    answers = checked(REAL["onnxruntime"], exported_run, copy, scratch, reference)
    assert not answers.right
    assert answers.same < answers.rows / 2
    assert answers.max_difference > 0.1


def test_nothing_of_a_server_is_left_when_it_is_closed(exported_run, model, tmp_path):
    contender = REAL["onnxruntime, a worker a core"]
    with started(contender, exported_run, model, tmp_path) as server:
        assert len(processes(server.session)) >= 3
    assert processes(server.session) == []
    server.close()


def stand_in(words):
    return Contender(
        peer="stand-in",
        settings="",
        environment=Environment.OWN,
        launch=lambda _: Launch(words=words),
        path="/",
        body='{"texts": "$TEXTS"}',
        parse=lambda answer: answer["predictions"],
    )


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    contender = stand_in(("/bin/sh", "-c", "echo no such model; exit 7"))
    with pytest.raises(NotReadyError, match="stand-in did not start: it ended with 7") as raised:
        started(contender, tmp_path, tmp_path, tmp_path)
    assert raised.value.details == "no such model"


def test_a_program_that_is_not_there_is_told(tmp_path):
    with pytest.raises(NotReadyError, match="cannot be started: No such file"):
        started(stand_in((str(tmp_path / "nothing"),)), tmp_path, tmp_path, tmp_path)
