"""The methods that fit linear models."""

from pipework.data.examples import Example
from pipework.train.linear import fit
from tests.train.learning import logits, score


def test_many_labels_have_the_mean_of_their_texts(fitted, topics, monkeypatch):
    monkeypatch.setattr(fit, "MANY_LABELS", 1)
    run = fitted(topics, "train.calibrate=false")
    assert score(run) == 1
    cosines_NC = logits(run, [Example(text=text) for text, _ in topics["dev"]])
    assert 0.3 < cosines_NC.max() < 1.2
