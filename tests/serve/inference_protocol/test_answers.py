import json

import numpy as np
import pytest

from pipework.task import Metric, Task, TaskKind
from serve.inference_protocol.answers import write_answer
from serve.inference_protocol.requests import Asked
from serve.inference_protocol.tensors import ProtocolError
from serve.text_tensors import Answer, Texts

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
ANSWER = Answer.of(np.array([[0.0, 2.0], [1.0, -1.0]], np.float32), TASK)


def asked(outputs, *, as_bytes=False, id=""):  # noqa: A002
    return Asked(id=id, texts=Texts(text=[]), outputs=outputs, as_bytes=as_bytes)


def test_all_outputs_as_json():
    body, head = write_answer(asked(None, id="x"), ANSWER, "run", "1")
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


def test_chosen_outputs_some_as_bytes():
    body, head = write_answer(asked({"logits": True, "label": False}), ANSWER, "run", "1")
    logits, label = json.loads(body[:head])["outputs"]
    assert logits["parameters"] == {"binary_data_size": 16}
    assert "data" not in logits
    assert label["data"] == ["b", "a"]
    assert body[head:] == ANSWER.logits_NC.tobytes()


def test_an_output_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ProtocolError, match=r"'length': there is none; there are label, score"):
        write_answer(asked({"length": False}), ANSWER, "run", "1")
