"""What the runtimes have in common: opening a graph, and the outputs of its engine."""

import numpy as np
import openvino as ov
import pytest
from onnx import TensorProto, helper, save

from pipework.data.examples import Example
from pipework.errors import RunFolderError
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.serve.engines import runtime
from pipework.serve.engines.openvino import shared_core
from pipework.serve.engines.runtime import Usability, cpu_usability
from pipework.serve.engines.runtimes import runtime_of
from tests.serve.conftest import GRAPH, TEXTS, encoded
from tests.serve.engines.conftest import collate

ENTITIES = [((0, 4), (5, 9)), ((5, 9), (0, 4))]


@pytest.fixture(params=["onnx", "openvino"])
def opened(request, tmp_path):
    """A function that opens the graph of a run folder: run, type_ids=False, spans=False."""

    def start(run, *, type_ids=False, spans=False):
        path = run / GRAPH
        if request.param == "openvino":
            graph, path = shared_core().read_model(path), tmp_path / "model.xml"
            ov.save_model(graph, path, compress_to_fp16=False)
        collated = collate(type_ids=type_ids, spans=spans)
        variant = Variant(format=request.param, precision=Precision.FP32, layout=Layout.PADDED)
        return runtime_of(request.param).open(path, variant, collated, None, None)

    return start


def test_answers_are_in_the_order_of_the_inputs_and_do_not_depend_on_each_other(opened, run):
    encodings = encoded(run, [Example(text=text) for text in TEXTS])
    with opened(run) as engine:
        logits_NC = engine.infer(encodings).values
        alone_NC = np.concatenate([engine.infer([one]).values for one in encodings])
        assert engine.infer([]).values.shape == (0, 3)
        engine.close()  # it may be closed again
    assert logits_NC.dtype == np.float32
    assert logits_NC.argmax(axis=1).tolist() == [0, 1, 2, 0, 0, 1]
    np.testing.assert_allclose(logits_NC, alone_NC, atol=1e-6)


def test_the_second_text_of_a_pair_is_distinguished_from_the_first(opened, pair_run):
    pair = encoded(pair_run, [Example(text="rain sun", text_pair="goal")], type_ids=True)
    with opened(pair_run, type_ids=True) as engine:
        assert engine.infer(pair).values.argmax(axis=1).tolist() == [1]


def test_the_places_of_the_entities_reach_a_graph_that_takes_them(opened, entity_run):
    texts = [
        Example(text="rain goal " + "wind " * n, entities=spans) for n, spans in enumerate(ENTITIES)
    ]
    with opened(entity_run, spans=True) as engine:
        logits_NC = engine.infer(encoded(entity_run, texts)).values
    assert logits_NC.argmax(axis=1).tolist() == [1, 0]


def test_a_graph_with_other_inputs_is_refused_with_both_lists(opened, run, entity_run):
    expected = "expected inputs attention_mask, input_ids, token_type_ids, found attention_mask"
    with pytest.raises(RunFolderError, match=expected):
        opened(run, type_ids=True)
    with pytest.raises(RunFolderError, match="found attention_mask, entity_spans, input_ids"):
        opened(entity_run)


def test_a_graph_with_other_outputs_is_refused(opened, tmp_path):
    names = ["input_ids", "attention_mask"]
    graph = helper.make_graph(
        [helper.make_node("Add", names, ["scores"])],
        "other",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "T"]) for name in names],
        [helper.make_tensor_value_info("scores", TensorProto.INT64, ["B", "T"])],
    )
    opsets = [helper.make_opsetid("", 17)]
    (tmp_path / GRAPH).parent.mkdir(parents=True)
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / GRAPH)
    with pytest.raises(RunFolderError, match="expected the output logits, found scores"):
        opened(tmp_path)


def test_int8_is_slow_on_a_processor_without_its_instructions(monkeypatch):
    monkeypatch.setattr(runtime, "sums_int8", lambda: False)
    usable, details = cpu_usability(Precision.INT8, "toy")
    assert usable is Usability.SLOW
    assert details == "toy, which has no instructions for int8 sums (VNNI or AMX)"
    assert cpu_usability(Precision.FP32, "toy") == (Usability.YES, "toy")
