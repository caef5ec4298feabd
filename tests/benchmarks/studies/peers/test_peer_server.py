"""Real servers are started, compared with the checkpoint, measured and stopped."""

import json
import math
import socket

import onnx
import pytest

from pipework.benchmarks.studies.peers.competitor import (
    Competitor,
    Launch,
    LaunchContext,
    own_server,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.fastapi_peers import onnxruntime_peers, transformers_peers
from pipework.benchmarks.studies.peers.infinity_peers import link_model_files
from pipework.benchmarks.studies.peers.measuring import Reference
from pipework.benchmarks.studies.peers.model_folder import GRAPH, GRAPHS, write_model_folder
from pipework.benchmarks.studies.peers.peer_server import PeerServer, processes
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
    return LaunchContext(
        run=run, model=model, infinity=scratch, scratch=scratch, port=port, cores=2
    )


def started(competitor, run, model, scratch):
    return PeerServer(competitor, place(run, model, scratch))


def checked(competitor, run, model, scratch, reference):
    with started(competitor, run, model, scratch) as server:
        assert server.memory_mib() > 20
        assert len(processes(server.session)) >= (3 if "2 workers" in competitor.settings else 1)
        answers = reference.check(server)
    assert processes(server.session) == []
    server.close()
    return answers


def of(competitors, part):
    return next(competitor for competitor in competitors if part in competitor.settings)


REAL = {
    "onnxruntime": of(onnxruntime_peers(2, "fp32"), "text by text"),
    "onnxruntime, a worker a core": of(
        onnxruntime_peers(2, "fp32"), "2 workers of 1, a request a batch"
    ),
    "transformers": of(transformers_peers(2, "float32"), "a request a batch"),
    "pipework": next(own_server()),
}


@pytest.mark.parametrize("competitor", REAL.values(), ids=REAL)
def test_a_server_agrees_with_the_checkpoint(competitor, exported_run, model, tmp_path, reference):
    answers = checked(competitor, exported_run, model, tmp_path, reference)
    assert (answers.same, answers.truncates) == (answers.rows, True)
    assert answers.max_difference < 1e-4
    assert answers.accuracy == answers.checkpoint_accuracy


@pytest.mark.parametrize("part", ["no dynamic", "one batch"])
def test_a_plain_triton_model_agrees_with_the_checkpoint(
    part, exported_run, model, tmp_path, reference
):
    try:
        Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    competitor = of(triton_peers(2, "fp32"), part)
    answers = checked(competitor, exported_run, model, tmp_path, reference)
    assert (answers.same, answers.truncates) == (answers.rows, True)
    assert answers.max_difference < 1e-4


def test_onnxruntime_int8_nearly_agrees_with_the_checkpoint(
    exported_run, model, tmp_path, reference
):
    competitor = of(onnxruntime_peers(2, "int8"), "1 worker of 2, a request a batch")
    answers = checked(competitor, exported_run, model, tmp_path, reference)
    assert answers.equal
    assert answers.truncates
    assert 1e-5 < answers.max_difference < 0.2


def test_the_int8_graph_multiplies_integers_with_scales_per_channel(model):
    graph = onnx.load(model / GRAPHS / GRAPH["int8"]).graph
    kinds = [node.op_type for node in graph.node]
    assert "MatMulInteger" in kinds
    scales = [tensor for tensor in graph.initializer if tensor.name.endswith("_scale")]
    assert max(math.prod(tensor.dims) for tensor in scales) > 1


@pytest.mark.parametrize("graph", GRAPH.values())
def test_infinity_finds_exactly_one_graph(graph, model, tmp_path):
    link_model_files(model, graph, tmp_path)
    assert [path.name for path in tmp_path.rglob("*.onnx")] == [graph]
    assert (tmp_path / "tokenizer.json").is_file()
    assert (tmp_path / graph).read_bytes() == (model / GRAPHS / graph).read_bytes()


def test_a_server_with_wrong_labels_is_detected(exported_run, model, tmp_path, reference):
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
    assert (answers.same, answers.truncates) != (answers.rows, True)
    assert answers.same < answers.rows / 2
    assert answers.max_difference > 0.1


def stand_in(words):
    return Competitor(
        peer="stand-in",
        settings="",
        environment=Environment.OWN,
        launch=lambda _: Launch(words=words),
        path="/",
        body='{"texts": "$TEXTS"}',
        parse=lambda answer: answer["predictions"],
    )


def test_a_server_that_exits_is_reported_with_its_log(tmp_path):
    competitor = stand_in(("/bin/sh", "-c", "echo no such model; exit 7"))
    with pytest.raises(
        NotReadyError, match="stand-in did not start: it exited with code 7"
    ) as raised:
        started(competitor, tmp_path, tmp_path, tmp_path)
    assert raised.value.details == "no such model"


def test_a_missing_program_is_reported(tmp_path):
    with pytest.raises(NotReadyError, match="cannot be started: No such file"):
        started(stand_in((str(tmp_path / "nothing"),)), tmp_path, tmp_path, tmp_path)
