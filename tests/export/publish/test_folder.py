"""Published folders, opened by the libraries that users open them with."""

import json
import re
import shutil

import numpy as np
import onnxruntime
import openvino
import pytest
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from pipework.benchmarks.studies.imports import save_classifier, save_graph
from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.export.config import ExportSettings, ImportSettings
from pipework.export.importing.run import import_source
from pipework.export.inference import predict_run
from pipework.export.publish.folder import publish_folder
from pipework.export.publish.model_card import PublishedEngine, model_card
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Speed
from pipework.run_folder.manifest import ImportRecord, read_manifest, write_manifest
from pipework.train.config.run_config import SAMPLE
from tests.checked_manifest import as_checked
from tests.commands import pipe
from tests.export.conftest import ENGINES
from tests.repetitions import repeated

LABELS = ("onnx-fp32", "onnx-fp32-packed", "onnx-int8-dynamic", "openvino-fp32")
VARIANTS = [ENGINES[label] for label in LABELS]
QUICK = ExportSettings(speed_s=0, dev_rows=60)


@pytest.fixture(scope="module")
def exported(trained_run, tmp_path_factory):
    """A trained run with engines."""
    run = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(trained_run, run)
    export(run, NullProgress(), VARIANTS, settings=QUICK)
    return run


@pytest.fixture(scope="module")
def published(exported, tmp_path_factory):
    """The published run; read it only."""
    folder = tmp_path_factory.mktemp("published") / "folder"
    done = pipe("publish", exported, "--to", f"folder:{folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def rows():
    return list(Source(path=SAMPLE / "test.tsv").rows())


def test_the_files_have_the_names_of_the_hub(published):
    names = {str(path.relative_to(published)) for path in published.rglob("*") if path.is_file()}
    assert names == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("onnx/model.onnx", "onnx/model_quantized.onnx", "pipework.json", "README.md"),
        *("openvino/openvino_model.xml", "openvino/openvino_model.bin"),
    }


def test_proven_engines_without_a_place_are_named(exported, tmp_path):
    done = pipe("publish", exported, "--to", f"folder:{tmp_path / 'folder'}")
    assert done.returncode == 0, done.stderr
    line = (
        "not published: onnx-fp32-packed; the layout of model hubs has only the fastest padded "
        "engine of onnx (fp32, fp16, int8) and openvino (fp32, int8)"
    )
    assert line in done.stderr.splitlines()


def test_a_pipeline_of_transformers_predicts_the_same(exported, published, rows):
    classify = pipeline("text-classification", model=str(published))
    theirs = classify([row.text for row in rows])
    ours = [prediction for _, prediction in predict_run(exported, rows, "onnx-fp32")]
    assert [entry["label"] for entry in theirs] == [prediction.label for prediction in ours]
    expected = [prediction.score for prediction in ours]
    assert [entry["score"] for entry in theirs] == pytest.approx(expected, abs=1e-5)


def test_onnxruntime_and_openvino_compute_the_logits_of_the_checkpoint(published, rows):
    tokens = AutoTokenizer.from_pretrained(published)
    model = AutoModelForSequenceClassification.from_pretrained(published)
    batch = [row.text for row in rows[:16]]
    expected = model(**tokens(batch, padding=True, return_tensors="pt")).logits.detach().numpy()
    arrays = dict(tokens(batch, padding=True, return_tensors="np"))
    for name, difference in (("model", 1e-4), ("model_quantized", 0.5)):
        session = onnxruntime.InferenceSession(published / f"onnx/{name}.onnx")
        names = [node.name for node in session.get_inputs()]
        (logits,) = session.run(None, {key: arrays[key] for key in names})
        np.testing.assert_allclose(logits, expected, atol=difference)
    hint = {"INFERENCE_PRECISION_HINT": "f32"}  # as the model card says
    assert "INFERENCE_PRECISION_HINT" in (published / "README.md").read_text()
    compiled = openvino.compile_model(published / "openvino/openvino_model.xml", "CPU", hint)
    names = [port.any_name for port in compiled.inputs]
    np.testing.assert_allclose(
        compiled({key: arrays[key] for key in names})[0], expected, atol=1e-4
    )


@pytest.mark.parametrize(
    "variants", [VARIANTS[:1], pytest.param(VARIANTS, marks=pytest.mark.slow)], ids=len
)
def test_an_import_of_the_folder_has_the_same_proofs(exported, published, tmp_path, variants):
    run = tmp_path / "again"
    before = read_manifest(exported)
    files = [SAMPLE / "dev.tsv", SAMPLE / "train.tsv"]
    manifest = import_source(str(published), run, files, ImportSettings(), NullProgress())
    assert manifest.task == before.task
    assert manifest.input.max_length == before.input.max_length
    assert manifest.data.metrics["dev"] == before.data.metrics["dev"]
    again = export(run, NullProgress(), variants, settings=QUICK)
    proofs = {engine.name: rounded(engine.parity) for engine in before.engines}
    assert {engine.name: rounded(engine.parity) for engine in again} == {
        variant.label: proofs[variant.label] for variant in variants
    }


def rounded(parity):
    """Return the fields of a proof without the last bits, which depend on the order of sums."""
    return json.loads(parity.model_dump_json(), parse_float=lambda digits: round(float(digits), 6))


def test_the_model_card_is_valid_and_has_the_scores(exported, published):
    text = (published / "README.md").read_text()
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    fields = yaml.safe_load(front)
    assert fields["library_name"] == "transformers"
    (results,) = [entry["results"] for entry in fields["model-index"]]
    manifest = read_manifest(exported)
    assert [result["dataset"]["split"] for result in results] == [*manifest.data.metrics]
    for result, stored in zip(results, manifest.data.metrics.values(), strict=True):
        found = {metric["type"]: metric["value"] for metric in result["metrics"]}
        expected = {metric.value: score for metric, score in stored.scores.items()}
        assert found == pytest.approx(expected, abs=1e-6)
    (accuracy,) = [m for m in results[0]["metrics"] if m["type"] == "accuracy"]
    assert accuracy["args"]["low"] < accuracy["value"] < accuracy["args"]["high"]
    for name in ("onnx/model.onnx", "onnx/model_quantized.onnx", "openvino/openvino_model.xml"):
        assert f"| `{name}` |" in body
    for finding in manifest.data.findings:
        assert finding in body


def test_no_absolute_path_is_published(exported, published):
    for path in published.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(exported.parent).encode() not in content, path
            assert str(SAMPLE).encode() not in content, path


def test_a_run_without_a_proven_engine_is_refused(trained_run, tmp_path):
    done = pipe("publish", trained_run, "--to", f"folder:{tmp_path / 'out'}")
    assert done.returncode == 2
    assert f"{trained_run} has no proven padded engine of onnx or openvino" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_changed_engine_is_refused(exported, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(exported, run)
    (engine,) = run.glob("engines/onnx-fp32/*/model.onnx")
    engine.write_bytes(engine.read_bytes() + b"\0")
    done = pipe("publish", run, "--to", f"folder:{tmp_path / 'out'}")
    assert done.returncode == 3
    assert "model.onnx changed" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_head_that_transformers_does_not_have_is_refused(exported, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(exported, run)
    manifest = read_manifest(run)
    model = manifest.model.model_copy(update={"head": "cnn"})
    write_manifest(run, as_checked(manifest.model_copy(update={"model": model})))
    done = pipe("publish", run, "--to", f"folder:{tmp_path / 'out'}")
    assert "has the head cnn, which transformers does not have; expected linear" in done.stderr


@pytest.mark.parametrize(
    "target", ["folder", "folder:", "folder://x", "zip:out", "hf:x/y", "mlflow://x", "out"]
)
def test_an_unknown_target_is_refused(target, exported):
    done = pipe("publish", exported, "--to", target)
    assert done.returncode == 2
    assert f"error: --to {target}: expected " in done.stderr


def test_files_in_the_target_are_kept(exported, tmp_path):
    (tmp_path / "mine").write_text("mine")
    done = pipe("publish", exported, "--to", f"folder:{tmp_path}")
    assert f"{tmp_path} already exists and is not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_published_model_of_single_texts_reads_no_pairs(published, tmp_path):
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\ttext_pair\nrain\tsun\n")
    run = tmp_path / "run"
    manifest = import_source(str(published), run, [rows], ImportSettings(), NullProgress())
    assert not manifest.input.pair


def test_a_damaged_record_in_the_folder_is_named(published, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(published, source)
    record = json.loads((source / "pipework.json").read_text())
    del record["task"]
    (source / "pipework.json").write_text(json.dumps(record))
    done = pipe("import", source, "--out", tmp_path / "run")
    assert f"error: {source / 'pipework.json'}: task: Field required" in done.stderr


@pytest.mark.parametrize("as_graph", repeated([True, False]))
def test_a_cross_encoder_is_published_without_its_activation(as_graph, tmp_path):
    activation = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    source = save_classifier(tmp_path / "source", labels=1, sentence_transformers=activation)
    if as_graph:
        save_graph(source)
    run, folder = tmp_path / "run", tmp_path / "folder"
    import_source(str(source), run, [], ImportSettings(), NullProgress())
    export(run, NullProgress(), [ENGINES["onnx-fp32"]], settings=QUICK)
    done = pipe("publish", run, "--to", f"folder:{folder}")
    assert done.stdout == f"published: {folder}, without engines\n", done.stderr
    assert not (folder / "onnx").exists()
    card = (folder / "README.md").read_text()
    assert "None in this folder." in card
    assert "The proven engines compute the activation of the score" in card


def test_a_run_without_a_checkpoint_is_refused(exported, tmp_path):
    run = shutil.copytree(exported, tmp_path / "run")
    manifest = read_manifest(run)
    model = manifest.model.model_copy(update={"checkpoint": ()})
    write_manifest(run, as_checked(manifest.model_copy(update={"model": model})))
    with pytest.raises(ConfigError, match="has no checkpoint, as in a container image"):
        publish_folder(run, tmp_path / "folder", NullProgress())
    assert not (tmp_path / "folder").exists()


def test_the_card_shows_unreliable_speeds_and_rows_of_the_calibration(exported):
    manifest = read_manifest(exported)
    source = ImportRecord(
        kind="transformers", source="x", revision=None, program="torch 2", rows=1, max_abs=0
    )
    imported = manifest.model_copy(update={"imported": source})
    (first, *_) = manifest.engines
    speed = Speed(
        texts_per_s=10, batch=1, p50_ms=1, rows=1, threads=1, processor="cpu", variation=0.89
    )
    engine = PublishedEngine(file="a", name="b", parity=first.parity, speed=speed)
    card = model_card(exported, imported, (engine,), NullProgress(), "topics")
    assert "| 10 |\n" in card
    assert "Texts/s were measured on cpu with 1 thread, 1 text per batch." in card
    assert "not reliable: they are uncertain by up to 89%" in card
    assert "- calibration of int8: train.tsv" in card
    assert "truncation=True, max_length=" in card
