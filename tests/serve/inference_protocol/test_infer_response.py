import json
from dataclasses import replace

import numpy as np
import pytest

from pipework.serve.inference_protocol.infer_request import (
    OUTPUTS,
    ParsedRequest,
    RequestedOutput,
    elements,
)
from pipework.serve.inference_protocol.json_codec import write_response
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.wire.text_tensors import InputTexts, OutputTensors

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
ANSWER = OutputTensors.of(Outputs.of(np.array([[0.0, 2.0], [1.0, -1.0]], np.float32)), TASK)


def asked(outputs=(), *, id=""):  # noqa: A002
    wanted = {
        name: RequestedOutput(as_bytes=as_bytes, best=best) for name, as_bytes, best in outputs
    }
    everything = dict.fromkeys(OUTPUTS, RequestedOutput(as_bytes=False))
    return ParsedRequest(id=id, texts=InputTexts(text=[]), outputs=wanted or everything)


def test_all_outputs_as_json():
    body, head = write_response(asked(id="x"), ANSWER, "run", "1")
    answer = json.loads(body)
    assert head is None
    assert {key: answer[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "run",
        "model_version": "1",
        "id": "x",
    }
    label, score, probabilities, logits = answer["outputs"]
    assert label == {"name": "label", "datatype": "BYTES", "shape": [2, 1], "data": ["b", "a"]}
    assert (score["shape"], probabilities["shape"]) == ([2, 1], [2, 2])
    assert logits["data"] == [0.0, 2.0, 1.0, -1.0]


def test_selected_outputs_some_as_bytes():
    body, head = write_response(
        asked([("logits", True, 0), ("label", False, 0)]), ANSWER, "run", "1"
    )
    logits, label = json.loads(body[:head])["outputs"]
    assert logits["parameters"] == {"binary_data_size": 16}
    assert "data" not in logits
    assert label["data"] == ["b", "a"]
    assert body[head:] == ANSWER.outputs.values.tobytes()


def test_classifications_have_values_in_descending_order():
    body, head = write_response(
        asked([("logits", False, 1), ("probabilities", True, 5)]), ANSWER, "run", "1"
    )
    logits, probabilities = json.loads(body[:head])["outputs"]
    assert (logits["datatype"], logits["shape"]) == ("BYTES", [2, 1])
    assert logits["data"] == ["2.000000:1:b", "1.000000:0:a"]
    assert probabilities["shape"] == [2, 2]  # there are no more than two
    words = elements(memoryview(body)[head:], "probabilities", 9)
    assert words == [b"0.880797:1:b", b"0.119203:0:a", b"0.880797:0:a", b"0.119203:1:b"]


@pytest.mark.parametrize(
    ("truncated", "expected"),
    [((), None), ((1,), {"truncated": "1"}), ((0, 1), {"truncated": "0,1"})],
)
def test_truncated_texts_are_listed(truncated, expected):
    answer = replace(ANSWER, truncated=truncated)
    body, _ = write_response(asked([("label", False, 0)]), answer, "run", "1")
    assert json.loads(body).get("parameters") == expected


def test_no_texts_have_no_classes():
    nothing = ANSWER.rows(0, 0)
    body, _ = write_response(asked([("logits", False, 1)]), nothing, "run", "1")
    (logits,) = json.loads(body)["outputs"]
    assert (logits["shape"], logits["data"]) == ([0, 1], [])
