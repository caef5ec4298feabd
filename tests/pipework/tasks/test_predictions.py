import pytest
from pydantic import TypeAdapter, ValidationError

from pipework.tasks.predictions import (
    MultiLabel,
    Prediction,
    RegressionValue,
    SingleLabel,
    mark_truncated,
)

PREDICTIONS = {
    '{"label":"x","score":0.5,"scores":{"x":0.5},"truncated":false,"windows":1}': SingleLabel(
        label="x", score=0.5, scores={"x": 0.5}
    ),
    '{"labels":["x"],"scores":{"x":0.5},"truncated":true,"windows":1}': MultiLabel(
        labels=("x",), scores={"x": 0.5}, truncated=True
    ),
    '{"labels":[],"scores":{},"truncated":false,"windows":1}': MultiLabel(labels=(), scores={}),
    '{"score":2.5,"truncated":false,"windows":1}': RegressionValue(score=2.5),
}


@pytest.mark.parametrize("text", PREDICTIONS)
def test_each_kind_of_prediction_reads_back_from_json(text):
    adapter = TypeAdapter(Prediction)
    assert adapter.validate_json(text) == PREDICTIONS[text]
    assert adapter.dump_json(PREDICTIONS[text]).decode() == text


def test_the_predictions_of_truncated_texts_are_marked():
    predictions = mark_truncated([*PREDICTIONS.values()], [0, 3])
    assert [prediction.truncated for prediction in predictions] == [True, True, False, True]
    assert predictions[3] == RegressionValue(score=2.5, truncated=True)


def test_an_unknown_kind_of_prediction_is_rejected():
    with pytest.raises(ValidationError):
        TypeAdapter(Prediction).validate_json('{"score": 2.5, "other": 1}')


def test_predictions_are_formatted_as_text_fields():
    multi = MultiLabel(labels=("y", "x"), scores={"y": 0.75, "x": 0.5, "z": 0.1})
    assert SingleLabel(label="x", score=0.5, scores={}).text_fields() == ("x", "0.5000")
    assert multi.text_fields() == ("y, x", "0.7500, 0.5000")
    assert multi.text_fields("|") == ("y|x", "0.7500|0.5000")
    assert multi.text_fields(None) == ('["y", "x"]', "0.7500, 0.5000")
    assert RegressionValue(score=2.5).text_fields() == ("2.5000",)
