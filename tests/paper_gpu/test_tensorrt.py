"""The calls of TensorRT 10 and 11 by the product, checked by NVIDIA's bindings."""

import ast
from itertools import groupby

import numpy as np
import pytest

from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from tests.paper_gpu.device import ROOT, TENSORRT
from tests.paper_gpu.tensorrt_calls import COLLATE, rows_of

CALLERS = ("export/convert/onnx2tensorrt.py", "serve/engines/tensorrt.py")
OF_OTHERS = {"__init__", "node"}  # names that the product uses for other objects
CALLS = "tests.paper_gpu.tensorrt_calls"


@pytest.fixture(scope="module", params=TENSORRT)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorrt")


@pytest.fixture(scope="module")
def result(version, paper_gpu, trained_run, folder):
    arguments = (str(TENSORRT[version]), str(trained_run), str(folder))
    return paper_gpu.call(f"{CALLS}:built_and_run", *arguments)


def test_the_bindings_accept_all_calls_of_a_build_and_a_run(result, version, trained_run, folder):
    assert result["built"]["built_with"]["tensorrt"].startswith(f"{version}.")
    assert result["built"]["target"] == "Fake L4"
    encodings = [row.encoding for row in rows_of(trained_run).dev]
    with OnnxRuntimeEngine(folder / "graph.onnx", COLLATE) as engine:
        expected_NC = engine.infer(encodings).values
    np.testing.assert_allclose(result["logits"], expected_NC, atol=1e-5)


def test_every_member_of_tensorrt_that_the_product_names_was_called(result):
    trees = [ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in CALLERS]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used = {name.rpartition(".")[2] for name in result["used"]}
    assert len(used) > 30
    assert named & {*result["members"]} - OF_OTHERS == used


def test_an_engine_is_released_before_its_memory_on_the_device(result):
    released = [name for name, _ in groupby(result["released"])]
    assert released == ["IExecutionContext", "ICudaEngine", "Runtime", "cudaFree"]


def test_unusable_timings_are_measured_again(result):
    assert result["timings"] == {
        "": "measured",
        "usable": "usablemeasured",
        "damaged": "measured",
        "of another GPU": "measured",
    }


def test_an_operator_that_tensorrt_cannot_read_is_reported(result):
    expected = "TensorRT cannot read Gemm /model/model/classifier/Gemm: unknown"
    assert result["unreadable"] == expected


def test_methods_that_tensorrt_calls_have_its_parameters(paper_gpu, version):
    counts = paper_gpu.call(f"{CALLS}:overrides", str(TENSORRT[version]))
    # The bindings call these methods with the object and 1 to 3 values.
    assert counts == {
        "log": [3, 3],
        "phase_start": [4, 4],
        "step_complete": [3, 3],
        "phase_finish": [2, 2],
    }
