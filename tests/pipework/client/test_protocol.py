"""The part that both transports of the protocol share, with a server in memory."""

import pytest

from pipework.client.address import ServerUrl
from pipework.client.protocol import ATTEMPTS, ModelTensors, ProtocolTransport
from pipework.client.tensors import OUTPUTS, ProtocolResponse, ResponseTensor
from pipework.errors import InputError, PipeError, UnknownModelError
from pipework.tasks.predictions import SingleLabel
from pipework.wire.schemas import PredictRequest

TEXTS = ModelTensors(inputs=("text",), outputs=OUTPUTS)
IDS = ModelTensors(inputs=("input_ids",), outputs=("logits",))
LABELS = ("rain", "sun")


def tensor(shape, values):
    return ResponseTensor(datatype="", shape=shape, read=lambda: values)


class MemoryTransport(ProtocolTransport):
    """A server of the models `served`, whose versions answer in turn; the last one remains."""

    def __init__(self, served, url="http://host:1", versions=("1",), *, names=True):
        super().__init__(ServerUrl.of(url))
        self.served, self.versions, self.names = served, [*versions], names
        self.rows = None
        self.inferred, self.classified, self.described = [], 0, 0

    def _version(self):
        return self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]

    def _send(self, model, version, inputs, outputs):
        if any(outputs.values()):
            return self._classify(inputs, *outputs.values())
        self.inferred.append((model, version, inputs))
        rows = self.rows or len(inputs["text"])
        tensors = {
            "label": tensor([rows, 1], [LABELS[1]] * rows),
            "score": tensor([rows, 1], [0.75] * rows),
            "probabilities": tensor([rows, 2], [0.25, 0.75] * rows),
        }
        return ProtocolResponse(version=self._version(), parameters={}, tensors=tensors)

    def _classify(self, inputs, best):
        self.classified += 1
        assert {len(values) for values in inputs.values()} == {1}
        if not self.names:
            message = "classification is not supported"
            raise InputError(message)
        named = [f"0.5:{index}:{label}" for index, label in enumerate(LABELS)]
        tensors = {"probabilities": tensor([1, best], named[:best])}
        return ProtocolResponse(version=self._version(), parameters={}, tensors=tensors)

    def _describe(self, model, version):  # noqa: ARG002
        self.described += 1
        return self.served[model]

    def _models(self):
        return [*self.served]

    def ready(self):
        return True

    def close(self):
        pass


def predict(transport, *texts, **given):
    return transport.predict(PredictRequest(texts=[*texts], **given))


def test_the_class_names_of_a_version_are_read_once():
    transport = MemoryTransport({"topics": TEXTS})
    expected = SingleLabel(label="sun", score=0.75, scores={"sun": 0.75, "rain": 0.25})
    assert predict(transport, "a", "b") == [expected, expected]
    assert predict(transport, "c") == [expected]
    assert (transport.classified, len(transport.inferred)) == (1, 2)


def test_without_class_names_a_prediction_has_only_its_label():
    transport = MemoryTransport({"topics": TEXTS}, names=False)
    assert predict(transport, "a") == [SingleLabel(label="sun", score=0.75, scores={"sun": 0.75})]
    predict(transport, "b")
    assert transport.classified == 1  # not requested again


def test_a_switch_of_versions_is_retried():
    transport = MemoryTransport({"topics": TEXTS}, versions=("1", "2"))
    assert predict(transport, "a")[0].scores == {"sun": 0.75, "rain": 0.25}
    assert len(transport.inferred) == 2


def test_endless_switches_of_versions_are_reported():
    transport = MemoryTransport({"topics": TEXTS}, versions=map(str, range(100)))
    with pytest.raises(PipeError, match="version") as caught:
        predict(transport, "a")
    assert len(transport.inferred) == ATTEMPTS
    assert "versions are being switched" in caught.value.hint


def test_the_only_model_of_texts_is_chosen():
    transport = MemoryTransport({"topics-engine": IDS, "topics": TEXTS})
    predict(transport, "a")
    predict(transport, "b")
    assert {model for model, *_ in transport.inferred} == {"topics"}
    assert transport.described <= 3  # the models are listed once


def test_the_request_may_name_another_model_and_version_than_the_url():
    served = {"topics": TEXTS, "tone": TEXTS}
    transport = MemoryTransport(served, "http://host:1/v2/models/topics/versions/3")
    predict(transport, "a")
    predict(transport, "a", model="tone", version="4")
    assert [(model, version) for model, version, _ in transport.inferred] == [
        ("topics", "3"),
        ("tone", "4"),
    ]


@pytest.mark.parametrize(
    ("served", "found"),
    [({"topics": TEXTS, "tone": TEXTS}, "topics, tone"), ({"topics": IDS}, "none")],
)
def test_without_a_name_there_must_be_one_model_of_texts(served, found):
    with pytest.raises(UnknownModelError, match=f"found {found}") as caught:
        predict(MemoryTransport(served), "a")
    assert "http://host:1/v2/models/NAME" in caught.value.hint


def test_a_model_without_texts_is_rejected_before_a_request():
    transport = MemoryTransport({"topics": IDS}, "http://host:1/v2/models/topics")
    with pytest.raises(
        UnknownModelError, match="topics does not have input text and outputs label"
    ):
        predict(transport, "a")
    assert transport.inferred == []


def test_a_response_of_another_size_is_reported():
    transport = MemoryTransport({"topics": TEXTS})
    transport.rows = 3
    with pytest.raises(PipeError, match="model topics") as caught:
        predict(transport, "a", "b")
    assert "expected probabilities [2, C], found [3, 2]" in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (("text", "text_pair"), (*OUTPUTS, "logits"), True),
        (("text",), OUTPUTS[:-1], False),
        (("input_ids",), OUTPUTS, False),
    ],
)
def test_a_text_model_has_a_text_input_and_each_needed_output(inputs, outputs, expected):
    assert ModelTensors(inputs=inputs, outputs=outputs).of_texts is expected
