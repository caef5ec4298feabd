"""The scorer predicts as `decide` does, and is pickled by its path."""

import pickle

import numpy as np
import pytest

from pipework.data.examples import Example, split_pair
from pipework.errors import InputError
from pipework.run_folder.manifest import read_manifest
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.engines import base, collate, open_proven
from pipework.serve.engines.collate import CPU, Costs
from pipework.tasks.predictions import MultiLabel, RegressionValue, SingleLabel
from pipework.text.encoding import TextEncoder

TEXTS = ["rain", "goal team match", "", "bank rate", "sun goal bank wind", "rain " * 40] * 5


@pytest.mark.parametrize("name", ["run", "multi_run", "regression_run", "pair_run"])
def test_predictions_equal_those_of_decide(request, name):
    run = request.getfixturevalue(name)
    manifest = read_manifest(run)
    pairs = [f"{text}\tsun" for text in TEXTS] if manifest.input.pair else TEXTS
    examples = [split_pair(text) for text in pairs]
    encoder = TextEncoder.open(
        run / manifest.input.tokenizer.path,
        max_length=manifest.input.max_length,
        type_ids=manifest.input.type_ids,
    )
    with open_proven(run, manifest) as engine, Scorer(run, scores=True) as scorer:
        expected = manifest.task.decode(engine.infer(encoder.encode(examples)))
        scored = pickle.loads(pickle.dumps(scorer)).columns(examples)
    columns = {name: column.values for name, column in scored.items()}
    for row, prediction in enumerate(expected):
        scores = {} if isinstance(prediction, RegressionValue) else prediction.scores
        assert {name for name in columns if name.startswith("score_")} == {
            f"score_{label}" for label in scores
        }
        for label, score in scores.items():
            assert columns[f"score_{label}"][row] == pytest.approx(score, abs=1e-6)
        match prediction:
            case SingleLabel(label=label, score=score):
                assert columns["predicted_label"][row] == label
                assert columns["predicted_score"][row] == pytest.approx(score, abs=1e-6)
            case MultiLabel(labels=labels, scores=scores):
                assert tuple(columns["predicted_label"][row]) == labels
                assert columns["predicted_score"][row] == pytest.approx(
                    [scores[each] for each in labels]
                )
            case RegressionValue(score=score):
                assert "predicted_label" not in columns
                assert columns["predicted_score"][row] == pytest.approx(score, abs=1e-6)
        assert columns["truncated"][row] == (len(TEXTS[row]) > 150)


def test_a_batch_of_columns(run):
    batch = {
        "id": np.array([1, 2, 3]),
        "text": np.array(["rain", None, "goal"], object),
    }
    with Scorer(run) as scorer:
        columns = scorer(batch)
        with pytest.raises(InputError, match="no column 'text'; found id"):
            scorer({"id": batch["id"]})
    assert columns["id"] is batch["id"]
    assert columns["predicted_label"].tolist() == ["weather", None, "sport"]
    assert columns["truncated"].tolist() == [False, None, False]
    assert columns["error"].tolist() == [None, "expected a string at 'text', found NoneType", None]
    assert columns["predicted_score"][1] is None
    with Scorer(run) as scorer:
        numbers = scorer({"text": np.array([1, 2])})
        with pytest.raises(
            InputError, match="column 'error' has the name of a column that is added"
        ):
            scorer({"text": batch["text"], "error": batch["id"]})
    assert numbers["error"].tolist() == [None, None]


def test_other_columns_can_be_named(pair_run):
    batch = {"a": np.array(["rain"], object), "b": np.array(["rain"], object)}
    with Scorer(pair_run, text="a", text_pair="b") as scorer:
        assert scorer(batch)["predicted_label"].tolist() == ["weather"]


def test_a_pickled_scorer_holds_the_path_and_opens_once(run):
    with Scorer(run) as scorer:
        content = pickle.dumps(scorer)
    assert len(content) < 500
    first, second = pickle.loads(content), pickle.loads(content)
    assert first is second
    assert first.model.columns([Example(text="rain")])["predicted_label"].values == ["weather"]


def test_batches_are_cut_by_fixed_costs(run, monkeypatch):
    """Measured costs would change the last bits of scores from one start to the next."""
    sizes, pad = list[int](), collate.pad
    monkeypatch.setattr(base, "measure", lambda *_: Costs(call_tokens=0, most_tokens=1))
    with Scorer(run) as scorer:
        monkeypatch.setattr(
            collate, "pad", lambda texts, padding: sizes.append(len(texts)) or pad(texts, padding)
        )
        scorer.model.columns([Example(text="rain")] * 1000)  # of three tokens each
    assert sizes == [341, 341, 318]
    assert CPU.most_tokens // 3 == 341
