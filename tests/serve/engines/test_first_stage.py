"""A first stage answers texts with high scores, and the engine the others."""

import asyncio
import json
import logging
import pickle
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

from pipework import Client
from pipework.data.examples import Example
from pipework.errors import ChangedFileError, CheckFailedError
from pipework.predict.text_model import EngineModel
from pipework.run_folder.cascade import FOLDER, CascadeRecord
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_classifier, write_manifest
from pipework.scoring.evaluation import Engine
from pipework.serve.bulk.job_folder import job_folder
from pipework.serve.bulk.ledger import PLAN, BulkPlan, EngineIdentity, planned_engine
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.config import EngineSettings
from pipework.serve.engines import first_stage, open_first, open_proven
from pipework.serve.engines.first_stage import FirstStage, cascade_of, open_first_stage, open_served
from pipework.serve.models.open_models import open_predictor
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import FirstStageLabel
from pipework.tasks.single_label import SingleLabelTask
from pipework.text.encoding import open_encoder
from tests.serve.conftest import Server, keep_rows
from tests.serve.engines.test_recheck import wrong_while
from tests.serve.servers import WrappedEngine
from tests.serve.test_run import wait_for

WORDS = ("rain", "goal", "stock", "sun", "team", "the", "wind")
TEXTS = [f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS]


def label_scores(run: Path) -> list[float]:
    """Return the score of the label of each text by the engine of a run."""
    manifest = read_classifier(run)
    with EngineModel.open(run, manifest, open_proven(run, manifest)) as model:
        predictions = model.predict([Example(text=text) for text in TEXTS])
    return [prediction.score for prediction in predictions]


def swap_labels(run: Path) -> None:
    """Swap the first two logits of the engine of a run."""
    manifest = read_classifier(run)
    (engine,) = manifest.engines
    for file in engine.files:
        graph = onnx.load(run / file.path)
        for weight in graph.graph.initializer:
            values = onnx.numpy_helper.to_array(weight)
            if values.ndim == 2 and values.shape[1] == 3:
                swapped = np.ascontiguousarray(values[:, [1, 0, 2]])
                weight.CopyFrom(onnx.numpy_helper.from_array(swapped, weight.name))
        onnx.save(graph, run / file.path)
    files = tuple(record_file(run, run / file.path) for file in engine.files)
    changed = engine.model_copy(update={"files": files})
    write_manifest(run, manifest.model_copy(update={"engines": (changed,)}))


@pytest.fixture
def cascade(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    """A cascade whose first stage, another model with the same labels, answers half of TEXTS."""
    run, first = tmp_path / "run", tmp_path / "run" / FOLDER
    shutil.copytree(make_run(), run)
    shutil.copytree(make_run(), first)
    swap_labels(first)
    keep_rows(first)
    manifest, first_manifest = read_classifier(run), read_classifier(first)
    levels = np.unique(np.round(label_scores(first), 4))  # equal up to rounding
    record = CascadeRecord(
        first="first",
        first_digest=first_manifest.engines[0].digest,
        engine=manifest.engines[0].name,
        engine_digest=manifest.engines[0].digest,
        min_score=float(levels[len(levels) // 2 - 1 : len(levels) // 2 + 1].mean()),
        max_difference=0.1,
        source="dev",
        rows=1000,
        answered=500,
        differing=1,
        encode_us=5,
        first_us=1,
        engine_us=10,
    )
    sealed = record.sealed(manifest.subject)
    write_manifest(run, manifest.model_copy(update={"cascade": sealed}))
    return run


def expected_outputs(run: Path) -> tuple[list[bool], list[list[float]]]:
    """Return which texts the first stage answers, and the outputs of all, from the engines."""
    both = []
    for folder in (run / FOLDER, run):
        manifest = read_classifier(folder)
        engine = open_proven(folder, manifest, manifest.engines[0].name)
        with EngineModel.open(folder, manifest, engine) as model:
            both.append(model.infer([Example(text=text) for text in TEXTS]).outputs.values)
    record, task = read_classifier(run).cascade, read_classifier(run / FOLDER).task
    assert record is not None
    assert isinstance(task, SingleLabelTask)
    answered_N = task.best_scores(both[0]) >= record.min_score
    return answered_N.tolist(), np.where(answered_N[:, None], *both).tolist()


def test_an_engine_with_a_first_stage_computes_only_the_rest(cascade: Path) -> None:
    manifest = read_classifier(cascade)
    answered, expected = expected_outputs(cascade)
    assert 0.2 < np.mean(answered) < 0.8
    encodings = open_encoder(cascade, manifest).encode([Example(text=text) for text in TEXTS])
    with open_served(cascade, manifest).engine as engine:
        np.testing.assert_allclose(engine.infer(encodings).values, expected, atol=1e-5)
        assert engine.infer([]).values.shape == (0, 3)
        first = [row for row, one in enumerate(answered) if one]
        only_first = engine.infer([encodings[row] for row in first])
    np.testing.assert_allclose(only_first.values, [expected[row] for row in first], atol=1e-5)
    with open_served(cascade, manifest, manifest.engines[0].name).engine as alone:
        assert not np.allclose(alone.infer(encodings).values, expected, atol=1e-2)


@pytest.mark.parametrize("size", [1, 7, len(TEXTS)])
def test_the_server_queues_only_the_rest(cascade: Path, size: int) -> None:
    answered, expected = expected_outputs(cascade)
    task = read_classifier(cascade).task
    examples = [Example(text=text) for text in TEXTS]

    async def ask(predictor: Predictor) -> list[object]:
        parts = range(0, len(examples), size)
        found = await asyncio.gather(
            *(predictor.predict(examples[start : start + size]) for start in parts)
        )
        return [one for part in found for one in part]

    with open_predictor(cascade) as predictor:
        found = asyncio.run(ask(predictor))
        wait_for(lambda: predictor.load.unanswered_requests == 0)
        load = predictor.load
    assert [isinstance(one, FirstStageLabel) for one in found] == answered
    scores_NC = task.probabilities(np.array(expected, np.float32))
    assert [one.score for one in found] == pytest.approx(scores_NC.max(axis=1).tolist(), abs=1e-5)
    assert load.first_stage_texts == sum(answered)
    assert load.batch_texts == len(TEXTS) - sum(answered)


def test_cached_answers_name_the_stage(cascade: Path) -> None:
    examples = [Example(text=text) for text in TEXTS[:40]]
    with open_predictor(cascade) as predictor:
        predictor.keep_outputs(1_000_000)
        first, again = (asyncio.run(predictor.predict(examples)) for _ in range(2))
        assert predictor.load.cache_hits == 40
    assert first == again
    assert any(isinstance(one, FirstStageLabel) for one in first)


def test_a_server_of_a_cascade_answers_over_http_and_grpc(
    cascade: Path, start_server: Callable[..., Server]
) -> None:
    answered, expected = expected_outputs(cascade)
    labels = [read_classifier(cascade).task.labels[place] for place in np.argmax(expected, axis=1)]
    server = start_server(cascade)
    body = json.dumps({"texts": TEXTS}).encode()
    with urllib.request.urlopen(f"{server.url}/v1/predict", data=body) as response:
        predictions = json.load(response)["predictions"]
    assert [one["label"] for one in predictions] == labels
    assert [one.get("first_stage", False) for one in predictions] == answered
    with Client(server.url) as client:
        assert [one.label for one in client.predict(TEXTS)] == labels
    with urllib.request.urlopen(f"{server.url}/metrics") as response:
        metrics = response.read().decode()
    count = next(line for line in metrics.splitlines() if line.startswith("pipework_first_stage_t"))
    assert float(count.split()[-1]) == 2 * sum(answered)
    with Client(f"grpc://{server.grpc}") as client:
        assert [one.label for one in client.predict(TEXTS)] == labels


def test_a_first_stage_that_fails_leaves_all_texts_to_the_engine(
    cascade: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        message = "broken"
        raise RuntimeError(message)

    monkeypatch.setattr(FirstStage, "answer", fail)
    with open_predictor(cascade) as predictor:
        found = asyncio.run(predictor.predict([Example(text=text) for text in TEXTS[:9]]))
    assert not any(isinstance(one, FirstStageLabel) for one in found)
    assert "the first stage has failed" in caplog.text


def test_a_first_stage_that_becomes_wrong_is_not_used_again(
    cascade: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"

    def wrapped(*arguments: Any, **options: Any) -> tuple[EngineRecord, Engine]:
        record, engine = open_first(*arguments, **options)
        return record, WrappedEngine(engine, wrong_while(wrong))

    monkeypatch.setattr(first_stage, "open_first", wrapped)
    examples = [Example(text=text) for text in TEXTS]
    with open_predictor(cascade, EngineSettings(recheck_s=0.2)) as predictor:
        predictor.keep_outputs(1_000_000)
        before = asyncio.run(predictor.predict(examples))
        assert any(isinstance(one, FirstStageLabel) for one in before)
        assert (predictor.load.rechecks > 0, predictor.load.recheck_failures) == (True, 0)
        wrong.touch()
        time.sleep(0.3)
        asyncio.run(predictor.predict([Example(text="a new text")]))
        for _ in range(2):
            found = asyncio.run(predictor.predict(examples))
            assert not any(isinstance(one, FirstStageLabel) for one in found)
        assert predictor.alive
        assert predictor.load.recheck_failures == 1
        assert predictor.load.cache_bytes <= 1_000_000
    assert caplog.text.count("the first stage has failed") == 1
    assert "does not answer as it was checked" in caplog.text
    with pytest.raises(CheckFailedError, match="does not answer as it was checked"):
        open_predictor(cascade, EngineSettings(recheck_s=60))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_score": 0.1}, "proven with another model or score"),
        ({"engine_digest": "0" * 64}, "proven with another engine"),
        ({"max_difference": 0.01}, "proven with another model or score"),
        ({"first_digest": "0" * 64}, "proven with another model or score"),
    ],
)
def test_an_edited_cascade_is_refused(
    cascade: Path, change: dict[str, object], message: str
) -> None:
    manifest = read_classifier(cascade)
    assert manifest.cascade is not None
    edited = manifest.cascade.model_copy(update=change)
    with pytest.raises(ChangedFileError, match=message) as caught:
        cascade_of(manifest.model_copy(update={"cascade": edited}), None)
    assert "pipe export RUN --to cascade" in caught.value.hint
    task = manifest.task.model_copy(update={"labels": ("a", "b", "c")})
    with pytest.raises(ChangedFileError, match="another engine"):
        cascade_of(manifest.model_copy(update={"task": task}), None)


def test_another_first_stage_is_refused(cascade: Path, make_run: Callable[..., Path]) -> None:
    record = read_classifier(cascade).cascade
    assert record is not None
    shutil.rmtree(cascade / FOLDER)
    shutil.copytree(make_run(layers=3), cascade / FOLDER)
    with pytest.raises(ChangedFileError, match="is not the first stage"):
        open_first_stage(cascade, record)


def test_another_share_than_that_of_the_proof_is_logged_once(
    cascade: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_stage, "WINDOW", 300)
    manifest = read_classifier(cascade)
    assert manifest.cascade is not None
    answered, _ = expected_outputs(cascade)
    encodings = open_encoder(cascade, manifest).encode([Example(text=text) for text in TEXTS])
    certain = [one for one, sure in zip(encodings, answered, strict=True) if sure]
    with open_first_stage(cascade, manifest.cascade) as stage, caplog.at_level(logging.WARNING):
        stage.answer(encodings)
        assert (stage.texts, stage.answered) == (len(TEXTS), sum(answered))
        assert not stage.drifted
        for _ in range(2):
            stage.answer([*certain, *certain, *certain])
        assert stage.drifted
        assert caplog.text.count("these texts differ from those that prove the cascade") == 1
        stage.answer(encodings)
        assert not stage.drifted


def planned_after_a_job(run: Path, scorer: Scorer) -> str | None:
    """Return the engine that the next command of a bulk job opens."""
    path = run / f"job-{scorer.cascade is None}"
    plan = BulkPlan(
        model="a",
        task=scorer.manifest.task,
        tokenizer="a",
        engine=EngineIdentity.of(scorer.record, scorer.cascade),
        columns=(),
        keep=(),
        scores=False,
        files=(),
        items=(),
    )
    path.mkdir()
    (path / PLAN).write_text(plan.model_dump_json())
    return planned_engine(job_folder(str(path)))


def test_scores_that_are_no_number_are_left_to_the_engine(cascade: Path) -> None:
    manifest = read_classifier(cascade)
    assert manifest.cascade is not None
    assert isinstance(manifest.task, SingleLabelTask)
    engine = Mock()
    engine.infer.return_value = Outputs.of(np.array([[np.nan] * 3, [9.0, 0, 0]], np.float32))
    encodings = open_encoder(cascade, manifest).encode([Example(text="a"), Example(text="b")])
    stage = FirstStage(engine, manifest.task, manifest.cascade)
    assert stage.answer(encodings).rest == (0,)


def test_a_bulk_job_is_of_the_cascade_and_not_of_its_engine(cascade: Path) -> None:
    answered, expected = expected_outputs(cascade)
    names = read_classifier(cascade).task.labels
    record = read_classifier(cascade).cascade
    assert record is not None
    with Scorer(cascade) as scorer, Scorer(cascade, record.engine) as alone:
        assert planned_after_a_job(cascade, scorer) is None
        assert planned_after_a_job(cascade, alone) == record.engine
        columns = scorer.columns([Example(text=text) for text in TEXTS])
        identities = [EngineIdentity.of(one.record, one.cascade) for one in (scorer, alone)]
        copy = pickle.loads(pickle.dumps(scorer))
        again = copy.columns([Example(text=text) for text in TEXTS])
        assert again["predicted_label"] == columns["predicted_label"]
    assert list(columns["predicted_label"].values) == [
        names[place] for place in np.argmax(expected, axis=1)
    ]
    assert [one.cascade for one in identities] == [record.seal, ""]
    assert any(answered)
