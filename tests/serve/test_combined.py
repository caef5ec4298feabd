"""Several heads on one encoder answer as the runs that they were made of."""

import json
import random
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import tritonclient.grpc as triton
from playwright.sync_api import expect
from pyarrow import parquet

from pipework.client import Client
from pipework.data.examples import Example
from pipework.errors import CheckFailedError, ConfigError, DataError, MissingDependencyError
from pipework.export import combine as combine_module
from pipework.export.combine import combine
from pipework.export.config import ExportSettings, TritonSettings
from pipework.export.convert import checkpoint2onnx
from pipework.export.inference import evaluate_run, predict_run
from pipework.export.parity.score_change import dev_changes
from pipework.export.prediction_files import write_predictions
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.app import build_app
from pipework.serve.bulk.job import BulkOptions, score_files
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer
from pipework.tasks.heads import HeadsTask
from pipework.tasks.kinds import Metric
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.run_config import load_config
from pipework.train.model.combined import open_saved
from pipework.train.run import train
from tests.commands import pipe
from tests.serve.servers import server_in_thread

WORDS = {"PER": ("Ana", "Bob", "Zoë"), "LOC": ("Oslo", "Łódź", "東京"), "": ("met", "saw", "😀")}
CONFIG = """
[task]
kind = "{kind}"
[data]
train = "train.jsonl"
dev = "dev.jsonl"
columns = {{ label = "{column}" }}
[model]
{model}
max_length = 24
[train]
epochs = {epochs}
batch_size = 16
learning_rate = 3e-3
precision = "fp32"
calibrate = false
token_dropout = 0
"""
KINDS = {"mood": "single_label", "kinds": "multi_label", "names": "tokens"}
VARIANTS = [
    Variant(format="onnx", precision=Precision.FP32, layout=Layout.PADDED),
    Variant(format="onnx", precision=Precision.FP32, layout=Layout.PACKED),
]
SETTINGS = ExportSettings(speed_s=0.1)


def rows(count, seed):
    generator = random.Random(seed)
    for _ in range(count):
        text, spans = "", []
        for _ in range(generator.randint(1, 8)):
            label = generator.choice([*WORDS])
            word = generator.choice(WORDS[label])
            if label:
                spans.append({"start": len(text), "end": len(text) + len(word), "label": label})
            text += f"{word} "
        kinds = sorted({span["label"] for span in spans})
        yield {
            "text": text,
            "names": spans,
            "kinds": kinds,
            "mood": "away" if "LOC" in kinds else "home",
        }


def write(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


TEXTS = [row["text"] for row in rows(40, seed=2)]


def train_head(folder, name, kind, *, model, epochs=6):
    config = folder / f"{name}.toml"
    column = name if name in KINDS else "names"
    config.write_text(CONFIG.format(kind=kind, column=column, model=model, epochs=epochs))
    train(load_config(str(config), []), folder / name, NullProgress())
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run per kind, with the encoder of the first one."""
    folder = tmp_path_factory.mktemp("heads")
    write(folder / "train.jsonl", rows(300, seed=0))
    write(folder / "dev.jsonl", rows(80, seed=1))
    base = train_head(folder, "base", "tokens", model='preset = "tiny"')
    frozen = f'name = "{base}"\nfreeze = true'
    return {
        name: train_head(folder, name, kind, model=frozen, epochs=30)
        for name, kind in KINDS.items()
    }


@pytest.fixture(scope="module")
def combined(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("combined") / "run"
    combine(runs, out, NullProgress())
    export(out, NullProgress(), VARIANTS, settings=SETTINGS)
    return out


@pytest.fixture(scope="module")
def text_heads(runs, tmp_path_factory):
    """Heads of whole texts only, so that an input has one row."""
    out = tmp_path_factory.mktemp("text_heads") / "run"
    combine({name: runs[name] for name in ("kinds", "mood")}, out, NullProgress())
    export(out, NullProgress(), VARIANTS, settings=SETTINGS)
    return out


@pytest.fixture(scope="module")
def expected(runs):
    """The predictions of each text by the checkpoints of the runs."""
    found = {name: [one for _, one in predict(run)] for name, run in runs.items()}
    return [{name: found[name][row] for name in runs} for row in range(len(TEXTS))]


def predict(run, engine=None):
    return predict_run(run, [Example(text=text) for text in TEXTS], engine)


def answers(head):
    """The label, the labels and the spans of a prediction, without scores."""
    fields = head if isinstance(head, dict) else asdict(head)
    spans = [(one["start"], one["end"], one["label"]) for one in fields.get("spans", ())]
    return fields.get("label"), [*fields.get("labels", ())], spans


def scores(head):
    return head.get("scores", {}) if isinstance(head, dict) else getattr(head, "scores", {})


def check(found, expected):
    assert len(found) == len(expected) == len(TEXTS)
    for heads, runs in zip(found, expected, strict=True):
        assert {name: answers(head) for name, head in heads.items()} == {
            name: answers(one) for name, one in runs.items() if name in heads
        }
        for name, head in heads.items():
            assert scores(head) == pytest.approx(scores(runs[name]), abs=1e-4)


@pytest.mark.parametrize("engine", [None, "onnx-fp32", "onnx-fp32-packed"])
@pytest.mark.parametrize("name", ["combined", "text_heads"])
def test_each_head_answers_as_its_run(request, name, engine, expected):
    run = request.getfixturevalue(name)
    found = [prediction.heads for _, prediction in predict(run, engine)]
    check(found, expected)
    for heads, runs in zip(found, expected, strict=True):
        assert heads["mood"].score == pytest.approx(runs["mood"].score, abs=1e-4)
        assert heads["kinds"].scores == pytest.approx(runs["kinds"].scores, abs=1e-4)
    assert len({answers(heads["mood"])[0] for heads in found}) > 1
    assert len({len(answers(heads["kinds"])[1]) for heads in found}) > 1


def test_the_proof_has_each_head(combined, runs):
    manifest = read_manifest(combined)
    assert (manifest.task.kind, manifest.data.splits["dev"].rows) == ("token_heads", 240)
    for engine in manifest.engines:
        assert engine.proven
        assert [*engine.parity.heads] == [*runs]
        for name, run in runs.items():
            own = read_manifest(run)
            change = engine.parity.heads[name]
            score = own.data.metrics["dev"].scores[own.task.metric]
            assert change.scores.reference == change.scores.engine == pytest.approx(score)
            assert (change.flips, change.max_change < 1e-4) == (0, True)
    scores = [change.scores.reference for change in manifest.engines[0].parity.heads.values()]
    assert manifest.data.metrics["dev"].scores == {"mean_score": pytest.approx(np.mean(scores))}
    evaluation = evaluate_run(combined, None, "dev", "onnx-fp32", NullProgress())
    assert evaluation.score == pytest.approx(np.mean(scores))
    assert {"mood/away", "kinds/LOC", "names/PER"} <= {one.label for one in evaluation.classes}
    shown = pipe("show", combined).stdout
    assert "token_heads: mood (away, home), kinds (LOC, PER), names (LOC, PER)" in shown
    assert "onnx-fp32-packed, head mood: changes 0.00% of the labels" in shown


@pytest.mark.parametrize("layout", [Layout.PADDED, Layout.PACKED])
@pytest.mark.parametrize("head", [0, 1])  # of the other heads: kinds, names
def test_a_fault_in_one_head_is_refused(combined, tmp_path, monkeypatch, layout, head):
    def faulty(folder, attention=None):
        model = open_saved(folder, attention)
        model.others[head].calibrate(LogitScale(scale=(1.0,), offset=(0.01,)))
        return model

    run = shutil.copytree(combined, tmp_path / "run")
    monkeypatch.setattr(checkpoint2onnx, "open_saved", faulty)
    variant = Variant(format="onnx", precision=Precision.FP32, layout=layout)
    with pytest.raises(CheckFailedError, match="max_abs"):
        export(run, NullProgress(), [variant], settings=SETTINGS)


def test_a_server_answers_with_all_heads(combined, launch, expected):
    http, *_, grpc = launch(combined).first_line().split()
    for url in (http, f"grpc://{grpc}", f"{http}/v2/models/run"):
        with Client(url) as client:
            check([one.heads for one in client.predict(TEXTS)], expected)
            (best,) = client.predict(TEXTS[:1], top_k=1)
            assert [len(best.heads[name].scores) for name in ("mood", "kinds")] == [1, 1]
            (long,) = client.predict(["Ana met Bob " * 40])
            assert long.truncated
            assert all(head.truncated for head in long.heads.values())


def test_heads_of_whole_texts_are_served(text_heads, launch, expected):
    assert read_manifest(text_heads).task.kind == "heads"
    http, *_, grpc = launch(text_heads).first_line().split()
    for url in (http, f"grpc://{grpc}"):
        with Client(url) as client:
            check([one.heads for one in client.predict(TEXTS)], expected)


def test_triton_answers_with_all_heads(combined, tmp_path, expected):
    repository = tmp_path / "repository"
    add_version(combined, repository, TritonSettings(name="heads"), EngineChoice(), NullProgress())
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    with TritonServer(repository, installation=installation) as server:
        client = triton.InferenceServerClient(server.grpc)
        tensor = triton.InferInput("text", [len(TEXTS), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], np.object_))
        labels = client.infer("heads", [tensor]).as_numpy("label")[:, 0]
    check([json.loads(label)["heads"] for label in labels], expected)


def test_files_have_the_columns_of_each_head(combined, tmp_path, expected):
    write(tmp_path / "in.jsonl", [{"text": text} for text in TEXTS])
    options = BulkOptions(pattern=f"{tmp_path}/in.jsonl", out=tmp_path / "out")
    score_files(combined, options, NullProgress())
    (part,) = (tmp_path / "out").rglob("*.parquet")
    table = parquet.read_table(part).to_pydict()
    assert table["mood.predicted_label"] == [one["mood"].label for one in expected]
    assert table["kinds.predicted_label"] == [[*one["kinds"].labels] for one in expected]
    assert [[span["text"] for span in spans] for spans in table["names.predicted_spans"]] == [
        [span.text for span in one["names"].spans] for one in expected
    ]
    write_predictions(predict(combined), tmp_path / "a.csv", NullProgress())
    header, first, *_ = (tmp_path / "a.csv").read_text().splitlines()
    assert header == "text,predicted_heads"
    assert '""mood"": {""label"": ' in first


def test_the_page_shows_all_heads(combined, browser, expected):
    row = max(range(len(TEXTS)), key=lambda index: len(expected[index]["names"].spans))
    with Models([open_predictor(combined)]) as models, server_in_thread(build_app(models)) as url:
        page = browser.new_page()
        page.goto(url)
        page.locator("#text").fill(TEXTS[row])
        page.locator("#text").press("Enter")
        spans = [span.text for span in expected[row]["names"].spans]
        mood = expected[row]["mood"].label
        expect(page.locator("#prediction")).to_contain_text(f"mood: {mood}, kinds: ")
        expect(page.locator("#prediction")).to_contain_text(f"names: {len(spans)} spans")
        marks = page.locator("#marked mark").evaluate_all("all => all.map(m => m.firstChild.data)")
        assert marks == spans
        expect(page.locator("#bars .predicted .name").first).to_have_text(f"✓ mood/{mood}")
        page.close()


def test_runs_that_do_not_fit_are_refused(runs, tmp_path, trained_run):
    out, mood = tmp_path / "out", runs["mood"]
    folder = mood.parent
    base = folder / "base"
    trained = train_head(folder, "free", "tokens", model=f'name = "{base}"', epochs=1)
    refused = {
        "the encoder of .*free is not the encoder of .*mood": {"mood": mood, "free": trained},
        "reads other inputs than .*mood: max_length, tokenizer": {"mood": mood, "a": trained_run},
        "expected two runs or more": {"mood": mood},
        "in the name of a head, found 'a/b'": {"mood": mood, "a/b": runs["names"]},
    }
    for message, chosen in refused.items():
        with pytest.raises(ConfigError, match=message):
            combine(chosen, out, NullProgress())
        assert not out.exists()
    same = pipe("combine", f"a={mood}", f"a={runs['names']}", "--out", out)
    assert (same.returncode, "expected different names of heads" in same.stderr) == (2, True)
    other = pipe("combine", *runs.values(), "--out", base)
    assert other.returncode == 2
    assert f"{base} already exists" in other.stderr
    kind = pipe("check", folder / "base.toml", "--set", "task.kind=heads")
    assert (kind.returncode, "pipe combine makes such runs" in kind.stderr) == (2, True)


@pytest.mark.parametrize("first", ["cnn", "names"])
def test_a_head_of_another_form_answers_as_its_run(runs, tmp_path, first):
    base = runs["mood"].parent / "base"
    model = f'name = "{base}"\nfreeze = true\nhead = "cnn"'
    folder = tmp_path / "cnn"
    folder.mkdir()
    for name in ("train.jsonl", "dev.jsonl"):
        shutil.copy(runs["mood"].parent / name, folder)
    cnn = train_head(folder, "mood", "single_label", model=model, epochs=2)
    chosen = {"cnn": cnn, "names": runs["names"]}
    order = sorted(chosen, key=first.__ne__)
    out = tmp_path / "out"
    combine({name: chosen[name] for name in order}, out, NullProgress())
    for (_, found), (_, own) in zip(predict(out), predict(cnn), strict=True):
        assert found.heads["cnn"].scores == pytest.approx(own.scores, abs=1e-5)


def test_labels_of_some_heads_are_scored_and_of_others_refused(text_heads, tmp_path):
    def evaluated(*labels):
        write(tmp_path / "e.jsonl", [{"text": "Ana met Oslo", "label": label} for label in labels])
        return evaluate_run(text_heads, tmp_path / "e.jsonl", "dev", None, NullProgress())

    found = evaluated({"mood": "away"}, {"mood": "home", "kinds": None})
    assert found.score == 0.5  # the head kinds has no label
    for label, message in {
        "moood": "has a label for the head 'moood', which the model lacks",
        "kinds": r"e\.jsonl:1, head kinds has label 'x', which the model lacks",
    }.items():
        with pytest.raises(DataError, match=message):
            evaluated({label: ["x"]})
    with pytest.raises(DataError, match="no row has a label for a head"):
        evaluate_run(text_heads, None, "train", None, NullProgress())


def test_a_head_whose_score_falls_is_not_hidden_by_the_others():
    single = SingleLabelTask(labels=("no", "yes"), metric=Metric.ACCURACY)
    task = HeadsTask.of({"a": single, "b": single, "c": single})
    truth = task.truth([("f", json.dumps(dict.fromkeys("abc", "yes")))] * 100)
    right = np.tile(np.array([0, 1], np.float32), (100, 3))
    wrong = right.copy()
    wrong[:4, 2:4] = [1, 0]  # 4 % of the labels of head b
    changes = dev_changes(task, Outputs.of(right), Outputs.of(wrong), truth)
    assert changes.drop == pytest.approx(0.04)
    assert changes.scores.drop == pytest.approx(0.04 / 3)
    assert [change.flips for change, _ in changes.heads.values()] == [0, 4, 0]
    truth[:, 0] = np.nan
    with pytest.raises(DataError, match="no compared dev row has a label of the head a"):
        dev_changes(task, Outputs.of(right), Outputs.of(wrong), truth)


def test_a_head_that_answers_differently_is_refused(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(combine_module, "MAX_DIFFERENCE", -1.0)
    with pytest.raises(CheckFailedError, match="head mood differs from its run by up to"):
        combine(runs, tmp_path / "out", NullProgress())
    assert not (tmp_path / "out").exists()
