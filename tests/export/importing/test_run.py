"""Imports of classifiers that transformers saved."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, normalizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    PreTrainedTokenizerFast,
    ReformerConfig,
    pipeline,
)

from pipework.benchmarks.studies.imports import LABELS, save_classifier
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, ImportedFamily
from pipework.data.examples import Example
from pipework.errors import CheckFailedError, ConfigError, DataError, RunFolderError
from pipework.export.config import ExportSettings, ImportSettings
from pipework.export.importing import run as importing
from pipework.export.importing.imported_data import FOREIGN_TEXTS
from pipework.export.importing.run import import_source
from pipework.export.importing.source_checks import open_tokenizer
from pipework.export.importing.transformers_source import CONVERTED, open_source
from pipework.export.inference import evaluate_run, predict_run
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.settings import load_settings
from pipework.tasks import logit_scale
from pipework.tasks.kinds import Metric
from pipework.text.encoding import open_encoder
from pipework.train.config.data import TaskSettings
from pipework.train.data.tokenizer import SPECIAL_TOKENS
from pipework.train.model.packed_encoder import PACKABLE
from pipework.train.model.tensor_bundle import read_index
from tests.commands import pipe
from tests.export.importing.conftest import edit_json
from tests.repetitions import repeated
from tests.tensorflow_checkpoints import google_variables, randomise, write_checkpoint

TEXTS = ("rain in the north", "the team won", "shares fell", "a quiet day", "late goal", "票房")
SPEED = ExportSettings(speed_s=0)
# Of the families with equal inputs and states, the first.
DIFFERENT_FAMILIES = (
    *(EncoderFamily.BERT, EncoderFamily.MODERNBERT, EncoderFamily.ROBERTA),
    *(EncoderFamily.DEBERTA, EncoderFamily.XLNET, ImportedFamily.QWEN3, ImportedFamily.BART),
)
FAMILIES = [
    *repeated(DIFFERENT_FAMILIES),
    *(
        pytest.param(family, marks=pytest.mark.slow)
        for family in (*EncoderFamily, *ImportedFamily)
        if family not in DIFFERENT_FAMILIES
    ),
]


def imported(folder, out, *files, force=True, **settings):
    """Import a classifier; most of them have random weights, so their scores are low."""
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    options = load_settings(ImportSettings, None, [*overrides, f"force={json.dumps(force)}"])
    return import_source(str(folder), out, files, options, NullProgress())


def onnx(layout, **options):
    return Variant(format="onnx", layout=layout, precision=Precision.FP32, **options)


def labelled(count=40):
    return [f"{TEXTS[row % 6]} {row}\t{LABELS[row % 3]}" for row in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_as_its_source(family, tmp_path):
    source, run = save_classifier(tmp_path / "source", family), tmp_path / "run"
    manifest = imported(source, run)
    assert manifest.imported.max_abs < 1e-5
    assert manifest.imported.rows > 400
    assert manifest.model.family == family
    assert manifest.task.labels == LABELS
    assert manifest.data.findings[0] == FOREIGN_TEXTS
    assert read_manifest(run) == manifest
    if family is EncoderFamily.BERT:
        layouts = [Layout.PADDED, Layout.PACKED]
    else:
        layouts = [Layout.PACKED if family in PACKABLE else Layout.PADDED]
    for layout in layouts:
        (record,) = export(run, NullProgress(), [onnx(layout)], settings=SPEED)
        assert record.proven
        assert record.parity.scores is None


def test_a_decoder_whose_tokenizer_adds_no_tokens_reads_an_empty_text(tmp_path):
    source, run = save_classifier(tmp_path / "source", ImportedFamily.GPT2), tmp_path / "run"
    imported(source, run)
    export(run, NullProgress(), [onnx(Layout.PADDED)], settings=SPEED)
    empty, rain = (found for _, found in predict_run(run, [Example(text=""), Example(text="rain")]))
    (expected,) = pipeline("text-classification", model=str(source))("rain")
    assert rain.scores[expected["label"]] == pytest.approx(expected["score"], abs=1e-5)
    assert sum(empty.scores.values()) == pytest.approx(1)


def test_the_import_predicts_as_a_pipeline_of_transformers(classifier_folder, tmp_path):
    imported(classifier_folder, tmp_path / "run")
    classify = pipeline("text-classification", model=str(classifier_folder), top_k=None)
    ours = predict_run(tmp_path / "run", [Example(text=text) for text in TEXTS])
    for (_, prediction), scores in zip(ours, classify([*TEXTS]), strict=True):
        expected = {entry["label"]: entry["score"] for entry in scores}
        assert prediction.scores == pytest.approx(expected, abs=1e-5)


def test_labelled_rows_are_scored_and_kept(classifier_folder, rows_file, tmp_path):
    run, path = tmp_path / "run", rows_file(*labelled())
    manifest = imported(classifier_folder, run, path)
    splits = manifest.data.splits
    assert (splits["dev"].rows, splits["train"].rows) == (30, 10)
    assert manifest.data.metrics["dev"].rows == 30
    assert FOREIGN_TEXTS not in manifest.data.findings
    score = manifest.data.metrics["dev"].scores[Metric.ACCURACY]
    assert evaluate_run(run, None, "dev", None, NullProgress()).score == score
    calibration = run / splits["train"].path
    assert evaluate_run(run, calibration, "dev", None, NullProgress()).leaked is None
    path.unlink()  # the run has kept its rows
    static = onnx(Layout.PADDED).model_copy(
        update={"precision": Precision.INT8, "scaling": Scaling.STATIC}
    )
    (record,) = export(run, NullProgress(), [static], settings=SPEED)
    assert record.parity.scores is not None


def own_predictions(run, shift):
    """Return rows with the labels that a model predicts, each replaced by the label `shift` on."""
    texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
    predicted = predict_run(run, [Example(text=text) for text in texts])
    found = [LABELS.index(prediction.label) for _, prediction in predicted]
    return [f"{text}\t{LABELS[(one + shift) % 3]}" for text, one in zip(texts, found, strict=True)]


def test_a_model_with_other_labels_than_the_rows_is_refused(classifier_folder, rows_file, tmp_path):
    imported(classifier_folder, tmp_path / "first")
    right, rotated = (own_predictions(tmp_path / "first", shift) for shift in (0, 1))
    manifest = imported(classifier_folder, tmp_path / "run", rows_file(*right), force=False)
    assert manifest.data.metrics["dev"].scores[Metric.ACCURACY] == 1
    words = ("import", classifier_folder, "--data", rows_file(*rotated), "--out")
    done = pipe(*words, tmp_path / "wrong")
    assert done.returncode == 3
    assert re.search(
        r"error: the model is worse on .* than predicting '\w+' for every row: accuracy 0\.0000, "
        r"and \d\.\d{4} for the constant prediction\nhint: the tokenizer may belong to another "
        r"model, or id2label in another order: .* or import it with --force\n$",
        done.stderr,
    ), done.stderr
    assert not (tmp_path / "wrong").exists()
    assert pipe(*words, tmp_path / "forced", "--force").returncode == 0


def test_labelled_rows_calibrate_on_request(classifier_folder, rows_file, tmp_path, monkeypatch):
    monkeypatch.setattr(logit_scale, "FEWEST", 20)
    plain = imported(classifier_folder, tmp_path / "plain")
    rows = rows_file(*own_predictions(tmp_path / "plain", 0))
    as_it_is = imported(classifier_folder, tmp_path / "as-it-is", rows)
    assert as_it_is.model.calibration is None
    assert as_it_is.task == plain.task
    fitted = imported(classifier_folder, tmp_path / "run", rows, calibrate="true")
    (scale,) = fitted.model.calibration.scale
    assert scale > 2  # the random model is nearly always right, and unsure
    assert own_predictions(tmp_path / "run", 0) == own_predictions(tmp_path / "plain", 0)


def test_rows_are_read_with_the_settings_of_training(classifier_folder, tmp_path):
    rows = tmp_path / "rows.csv"
    lines = ["text;label", *(row.replace("\t", ";") for row in labelled()), "caf\u00e9;-"]
    rows.write_bytes("\n".join(lines).encode("gb18030"))
    settings = {"data__delimiter": ";", "data__encoding": "gb18030", "data__no_label": '["-"]'}
    manifest = imported(classifier_folder, tmp_path / "run", rows, **settings)
    assert manifest.data.splits["dev"].rows + manifest.data.splits["train"].rows == 40


def test_rows_without_labels_prove_but_score_nothing(classifier_folder, rows_file, tmp_path):
    run = tmp_path / "run"
    manifest = imported(classifier_folder, run, rows_file(*TEXTS, header="text"))
    assert manifest.data.metrics == {}
    assert manifest.data.splits["dev"].rows == 5
    (record,) = export(run, NullProgress(), [onnx(Layout.PADDED)], settings=SPEED)
    assert record.parity.scores is None
    with pytest.raises(DataError, match="has no labels"):
        evaluate_run(run, None, "dev", None, NullProgress())


def test_few_rows_leave_none_for_the_calibration(classifier_folder, rows_file, tmp_path):
    run = tmp_path / "run"
    manifest = imported(classifier_folder, run, rows_file(*labelled(3)))
    assert manifest.data.splits.keys() == {"dev"}
    rows = RunRows.open(run, manifest, SPEED)
    assert len(rows.dev) == 3
    assert len(rows.calibration_rows()) == 300  # texts of the sample


def test_equal_rows_leave_none_for_the_calibration(classifier_folder, rows_file, tmp_path):
    manifest = imported(classifier_folder, tmp_path / "run", rows_file(*["rain\tsport"] * 8))
    assert {name: split.rows for name, split in manifest.data.splits.items()} == {"dev": 8}


def test_a_single_row_is_counted_in_the_singular(classifier_folder, rows_file, tmp_path):
    done = pipe(
        "import", classifier_folder, "--out", tmp_path / "run", "--data", rows_file("rain\tsport")
    )
    assert " over 1 row\n" in done.stdout
    assert "data    dev 1 row\n" in pipe("show", tmp_path / "run").stdout


def test_a_file_without_rows_is_refused(classifier_folder, rows_file, tmp_path):
    with pytest.raises(DataError, match=r"rows\.tsv holds no rows"):
        imported(classifier_folder, tmp_path / "run", rows_file())
    assert not (tmp_path / "run").exists()


def test_rows_of_the_calibration_may_be_those_of_the_proof(classifier_folder, rows_file, tmp_path):
    path = rows_file(*labelled(12))
    findings = imported(classifier_folder, tmp_path / "run", path, path).data.findings
    assert not any("train" in finding for finding in findings)


def test_a_second_file_calibrates(classifier_folder, rows_file, tmp_path):
    second = rows_file(*TEXTS, header="text", name="more.tsv")
    first = rows_file(*labelled(12))
    manifest = imported(classifier_folder, tmp_path / "run", first, second)
    splits = manifest.data.splits
    assert (splits["dev"].rows, splits["train"].rows) == (12, 6)
    assert splits["train"].path == str(second)


def test_labels_by_number_or_with_new_names(classifier_folder, rows_file, tmp_path):
    rows = [f"{text}\t{row % 3}" for row, text in enumerate(TEXTS)]
    manifest = imported(classifier_folder, tmp_path / "run", rows_file(*rows))
    assert manifest.data.metrics["dev"].rows == 5
    names = '["a", "b", "c"]'
    renamed = imported(classifier_folder, tmp_path / "renamed", task__labels=names)
    assert renamed.task.labels == ("a", "b", "c")
    (_, prediction), *_ = predict_run(tmp_path / "renamed", [Example(text="rain")])
    assert set(prediction.scores) == {"a", "b", "c"}


def test_multi_label_thresholds_come_from_labelled_rows(rows_file, tmp_path):
    source = save_classifier(tmp_path / "source", problem_type="multi_label_classification")
    without = imported(source, tmp_path / "without")
    assert without.task.kind == "multi_label"
    assert without.task.thresholds == ()
    rows = [f"{text}\tsport,money" for text in TEXTS]
    manifest = imported(source, tmp_path / "run", rows_file(*rows), data__separator='","')
    assert len(manifest.task.thresholds) == 3


@pytest.mark.parametrize(
    ("activation", "largest"),
    [
        pytest.param("Sigmoid", 1.0, marks=pytest.mark.slow),
        *repeated([("Identity", np.inf), (None, 1.0)]),
    ],
)
def test_a_cross_encoder_scores_pairs_with_its_activation(activation, largest, tmp_path):
    own = {"version": "5.1.0"}
    if activation is not None:
        own["activation_fn"] = f"torch.nn.modules.activation.{activation}"
    source = save_classifier(tmp_path / "source", labels=1, sentence_transformers=own)
    model = AutoModelForSequenceClassification.from_pretrained(source)
    with torch.no_grad():
        model.classifier.weight *= 50
    model.save_pretrained(source)
    run = tmp_path / "run"
    manifest = imported(source, run)
    assert (manifest.task.kind, manifest.input.pair) == ("regression", True)
    assert manifest.imported.kind == "cross-encoder"
    export(run, NullProgress(), [onnx(Layout.PADDED), onnx(Layout.PACKED)], settings=SPEED)
    pairs = [Example(text=text, text_pair=TEXTS[0]) for text in TEXTS]
    values = [prediction.score for _, prediction in predict_run(run, pairs)]
    tokens = AutoTokenizer.from_pretrained(source)
    with torch.inference_mode():
        logits = [
            model(**tokens(pair.text, pair.text_pair, return_tensors="pt")).logits.item()
            for pair in pairs
        ]
    expected = logits if activation == "Identity" else torch.tensor(logits).sigmoid().tolist()
    assert values == pytest.approx(expected, abs=1e-4)
    assert max(np.abs(values)) <= largest
    # The copy in the run is still a cross-encoder for sentence-transformers.
    copy = AutoModelForSequenceClassification.from_pretrained(run / "checkpoint")
    assert copy.config.sentence_transformers == own


def test_a_cross_encoder_of_several_classes_labels_pairs(tmp_path):
    own = {"version": "5.1.0", "activation_fn": "torch.nn.modules.linear.Identity"}
    source = save_classifier(tmp_path / "source", sentence_transformers=own)
    manifest = imported(source, tmp_path / "run")
    assert (manifest.imported.kind, manifest.input.pair) == ("cross-encoder", True)
    assert (manifest.task.kind, manifest.task.labels) == ("single_label", LABELS)


def test_a_cross_encoder_of_a_newer_version_is_recognised(tmp_path):
    source = save_classifier(tmp_path / "source", labels=1)
    fields = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(fields))
    run = tmp_path / "run"
    manifest = imported(source, run)
    assert (manifest.imported.kind, manifest.input.pair) == ("cross-encoder", True)
    pairs = [Example(text=text, text_pair=TEXTS[0]) for text in TEXTS]
    assert all(0 < prediction.score < 1 for _, prediction in predict_run(run, pairs))


def test_a_pair_model_reads_pairs(classifier_folder, rows_file, tmp_path):
    rows = [f"{text}\t{TEXTS[0]}\t{LABELS[0]}" for text in TEXTS]
    path = rows_file(*rows, header="text\ttext_pair\tlabel")
    assert imported(classifier_folder, tmp_path / "run", path).input.pair
    single = imported(classifier_folder, tmp_path / "single", path, pair="false")
    assert not single.input.pair
    assert imported(classifier_folder, tmp_path / "pair", pair="true").input.pair


def test_the_first_line_describes_the_task(classifier_folder, tmp_path):
    done = pipe("import", classifier_folder, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    line = f"{classifier_folder}: transformers, 3 labels, softmax, single texts, at most 64 tokens"
    assert line in done.stderr
    assert f"finding: {FOREIGN_TEXTS}" in done.stdout
    assert f"next: pipe export {tmp_path / 'run'} --to auto" in done.stdout
    shown = pipe("show", tmp_path / "run").stdout
    assert "seed    unknown: imported" in shown


def with_special_tokens(source, *tokens):
    """Add special tokens to the tokenizer and the embeddings of a source."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens]})
    tokenizer.save_pretrained(source)
    model = AutoModelForSequenceClassification.from_pretrained(source)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(source)
    return source


def check_predictions(run, source, text):
    """Check that a run and transformers give a text the same scores."""
    (expected,) = pipeline("text-classification", model=str(source), top_k=None)([text])
    ((_, found),) = predict_run(run, [Example(text=text)])
    scores = {entry["label"]: entry["score"] for entry in expected}
    assert found.scores == pytest.approx(scores, abs=1e-5)


def test_rows_with_special_tokens_of_the_task_need_a_setting(
    classifier_folder, rows_file, tmp_path
):
    source = shutil.copytree(classifier_folder, tmp_path / "source")
    with_special_tokens(source, "[E1]", "[E2]")
    text = "[E1] goal [E2] match"
    path = rows_file(f"{text}\t{LABELS[0]}", f"rain\t{LABELS[1]}")
    with pytest.raises(ConfigError, match=r"\(\[E1\], \[E2\]\) are in 1 of 2 rows") as error:
        imported(source, tmp_path / "run", path)
    assert error.value.hint.endswith("--set special_tokens=true")
    imported(source, tmp_path / "run", path, special_tokens="true")
    check_predictions(tmp_path / "run", source, text)
    imported(source, tmp_path / "text", rows_file(f"rain\t{LABELS[1]}", name="plain.tsv"))
    with pytest.raises(AssertionError):
        check_predictions(tmp_path / "text", source, text)


def test_a_decoder_reads_the_tokens_of_a_prompt(rows_file, tmp_path):
    source = save_classifier(tmp_path / "source", ImportedFamily.QWEN3)
    with_special_tokens(source, "<|im_start|>", "<|im_end|>")
    prompt = "<|im_start|>user rain<|im_end|>"
    manifest = imported(source, tmp_path / "run", rows_file(f"rain\t{LABELS[0]}", f"{prompt}\t1"))
    assert not any("special token" in finding for finding in manifest.data.findings)
    check_predictions(tmp_path / "run", source, prompt)


@pytest.mark.parametrize("family", [ImportedFamily.QWEN3, ImportedFamily.GPT2])
def test_the_pad_token_may_end_the_turns_of_a_prompt(family, rows_file, tmp_path):
    source = save_classifier(tmp_path / "source", family)
    with_special_tokens(source, "<|im_start|>", "<|im_end|>")
    pad_id = AutoTokenizer.from_pretrained(source).convert_tokens_to_ids("<|im_end|>")
    edit_json(source / "tokenizer_config.json", pad_token="<|im_end|>")
    edit_json(source / "config.json", pad_token_id=pad_id)
    prompt = "<|im_start|>user rain<|im_end|> goal<|im_end|><|im_end|>"
    path = rows_file(f"{prompt}\t{LABELS[0]}", f"rain<|im_end|>\t{LABELS[1]}")
    manifest = imported(source, tmp_path / "run", path)
    assert not any("special token" in finding for finding in manifest.data.findings)
    check_predictions(tmp_path / "run", source, prompt)


def test_special_tokens_in_every_row_are_refused(classifier_folder, rows_file, tmp_path):
    path = rows_file(f"goal [SEP] match\t{LABELS[0]}", f"[MASK] rain\t{LABELS[1]}")
    with pytest.raises(ConfigError, match=r"reads as text: \[MASK\], \[SEP\]") as error:
        imported(classifier_folder, tmp_path / "run", path)
    assert error.value.hint.endswith("--set special_tokens=true")
    path = rows_file(f"goal [SEP] match\t{LABELS[0]}", f"rain\t{LABELS[1]}", name="one.tsv")
    findings = imported(classifier_folder, tmp_path / "run", path).data.findings
    assert any("rows with a special token in their text: 1, not" in line for line in findings)


def test_a_source_that_depends_on_its_batch_is_refused(classifier_folder, tmp_path):
    config = ReformerConfig(
        vocab_size=400,
        hidden_size=32,
        attention_head_size=16,
        num_attention_heads=2,
        feed_forward_size=64,
        attn_layers=["local", "lsh"],
        axial_pos_embds=False,
        max_position_embeddings=512,
        num_labels=3,
        is_decoder=False,
        local_attn_chunk_length=16,
        lsh_attn_chunk_length=16,
        num_buckets=4,
        hash_seed=1,
        initializer_range=0.5,
    )
    source = tmp_path / "source"
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(classifier_folder / name, source)
    edit_json(source / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    with pytest.raises(ConfigError, match=r"for an input alone and in a batch of [238]: logits"):
        imported(source, tmp_path / "run")


def test_weights_that_match_nothing_are_named(classifier_folder, tmp_path):
    source = shutil.copytree(classifier_folder, tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    weights |= {"gate.weight": torch.ones(2), "bert.embeddings.position_ids": torch.arange(512)}
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    findings = imported(source, tmp_path / "run").data.findings
    assert findings[1] == "weights of the source that the model does not use: gate.weight"
    assert not any(
        "weights" in finding
        for finding in imported(classifier_folder, tmp_path / "whole").data.findings
    )


def test_the_checkpoint_of_a_run_keeps_what_the_run_knows(rows_file, tmp_path):
    source = save_classifier(tmp_path / "source", problem_type="multi_label_classification")
    rows = [f"{text}\tsun\tsport,money" for text in TEXTS]
    path, run = rows_file(*rows, header="text\ttext_pair\tlabel"), tmp_path / "run"
    before = imported(source, run, path, data__separator='","', max_length=32)
    after = imported(run / "checkpoint", tmp_path / "again")
    assert (after.task, after.input.fields) == (before.task, ("text", "text_pair"))
    assert after.input.max_length == 32


def test_an_import_without_rows_reads_files(classifier_folder, rows_file, tmp_path):
    run = tmp_path / "run"
    imported(classifier_folder, run)
    path = rows_file(*TEXTS, header="text", name="rows.csv")
    done = pipe("predict", run, "--file", path)
    assert len(done.stdout.splitlines()) == 6, done.stderr


def changed_bias(source):
    with torch.no_grad():
        source.classifier.model.classifier.bias += torch.tensor([0.01, 0, 0])
    return source


def without_lowercase(source):
    source.tokenizer.normalizer = normalizers.NFC()
    return source


def test_large_logits_have_larger_rounding_errors(tmp_path):
    source, run = save_classifier(tmp_path / "source"), tmp_path / "run"
    model = AutoModelForSequenceClassification.from_pretrained(source)
    with torch.no_grad():
        model.classifier.weight *= 1e5
    model.save_pretrained(source)
    imported(source, run)
    (record,) = export(run, NullProgress(), [onnx(Layout.PACKED)], settings=SPEED)
    assert record.proven
    assert record.parity.unit > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            changed_bias,
            r"max_abs, mean_abs, flips\): logits differ by up to 0\.01 \(tolerance 0\.0001\)",
        ),
        *repeated(
            [
                (without_lowercase, r"the token ids of \d+ of 431 inputs differ"),
                (lambda source: replace(source, type_ids=False), "logits differ by up to"),
            ]
        ),
    ],
)
def test_a_different_copy_is_refused(change, message, classifier_folder, tmp_path, monkeypatch):
    opened = importing.open_source
    monkeypatch.setattr(
        importing, "open_source", lambda *words, **options: change(opened(*words, **options))
    )
    with pytest.raises(CheckFailedError, match=message) as error:
        imported(classifier_folder, tmp_path / "run", pair="true")
    assert "source -> import" in error.value.details
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_truncates_at_the_start_keeps_the_end_of_a_text(
    classifier_folder, tmp_path
):
    source = shutil.copytree(classifier_folder, tmp_path / "source")
    edit_json(source / "tokenizer_config.json", truncation_side="left")
    manifest = imported(source, tmp_path / "run")
    long = Example(text="goal " * 100 + "rain")
    (encoding,) = open_encoder(tmp_path / "run", manifest).encode([long])
    tokens = Tokenizer.from_file(str(source / "tokenizer.json"))
    assert encoding.truncated
    assert tokens.decode(encoding.ids.tolist()[-2:-1]) == "##in"
    saved = json.loads((tmp_path / "run/checkpoint/tokenizer_config.json").read_text())
    assert saved["truncation_side"] == "left"


def test_a_run_folder_needs_no_import(trained_run, tmp_path):
    with pytest.raises(ConfigError, match="is a run folder, which needs no import"):
        imported(trained_run, tmp_path / "run")


def test_a_regression_has_a_metric_of_numbers(tmp_path):
    source = save_classifier(tmp_path / "source", labels=1)
    assert imported(source, tmp_path / "run").task.metric is Metric.PEARSON


def test_existing_files_are_kept(classifier_folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "new.partial").mkdir()
    imported(classifier_folder, tmp_path / "new")
    assert (tmp_path / "new.partial").is_dir()
    shutil.rmtree(tmp_path / "new")
    (tmp_path / "new.partial").rmdir()
    with pytest.raises(RunFolderError, match="already exists and is not an empty folder"):
        imported(classifier_folder, tmp_path)
    with pytest.raises(RunFolderError, match="cannot create"):
        imported(classifier_folder, tmp_path / "file" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_unknown_labels_of_the_rows_are_named(classifier_folder, rows_file, tmp_path):
    path = rows_file("rain\tsport", "sun\tclimate")
    with pytest.raises(DataError, match=r"rows\.tsv:3 has label 'climate', which the model lacks"):
        imported(classifier_folder, tmp_path / "run", path)
    assert not (tmp_path / "run").exists()


def test_a_length_above_the_positions_is_refused(classifier_folder, tmp_path):
    longer = tmp_path / "longer"
    shutil.copytree(classifier_folder, longer)
    edit_json(longer / "tokenizer_config.json", model_max_length=None)
    with pytest.raises(ConfigError, match=r"max_length 600: .* takes at most 512 tokens"):
        imported(longer, tmp_path / "run", max_length=600)


@pytest.fixture
def tensorflow_folder(tmp_path):
    """A classifier of Google's run_classifier.py."""
    words = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", *"雨票房", "rain", "team", "##s"]
    sizes = {"vocab_size": len(words), "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    model = randomise(BertForSequenceClassification(BertConfig(**sizes, num_labels=3)))
    folder = tmp_path / "google"
    folder.mkdir()
    (folder / "bert_config.json").write_text(json.dumps(sizes | {"type_vocab_size": 2}))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    steps = {"global_step": np.int64(9)}
    write_checkpoint(folder / "model.ckpt-9", google_variables(model) | steps)
    return folder


def test_a_tensorflow_checkpoint_answers_as_its_weights_in_transformers(
    tensorflow_folder, tmp_path
):
    manifest = imported(tensorflow_folder, tmp_path / "run")
    assert manifest.imported.kind == "TensorFlow 1"
    assert manifest.imported.max_abs < 1e-5
    assert manifest.imported.rows > 400
    assert manifest.task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert (manifest.input.max_length, manifest.input.type_ids) == (64, True)
    assert manifest.data.findings[:2] == (FOREIGN_TEXTS, CONVERTED)


def test_the_labels_of_a_tensorflow_checkpoint_are_those_of_the_settings(tensorflow_folder):
    settings = ImportSettings(task=TaskSettings(labels=LABELS))
    assert open_source(str(tensorflow_folder), settings).task.labels == LABELS


def test_the_tokenizer_of_a_tensorflow_checkpoint_may_be_a_converted_one(tensorflow_folder):
    """As for the English ALBERT, whose vocabulary is of SentencePiece."""
    tokenizer = BertTokenizer.from_pretrained(tensorflow_folder).backend_tokenizer
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    converted = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")
    converted.save_pretrained(tensorflow_folder)
    (tensorflow_folder / "vocab.txt").unlink()
    assert open_tokenizer(str(tensorflow_folder))("RAIN").input_ids == converted("rain").input_ids
    source = open_source(str(tensorflow_folder), ImportSettings())
    assert source.tokenizer.encode("RAIN").ids == converted("rain").input_ids


def test_a_tensorflow_checkpoint_without_head_is_refused(tensorflow_folder, tmp_path):
    index = tensorflow_folder / "model.ckpt-9.index"
    variables = {stored.name: stored for stored in read_index(index)}
    encoder = {name: stored.read().numpy() for name, stored in variables.items() if "/" in name}
    write_checkpoint(tensorflow_folder / "model.ckpt-9", encoder)
    with pytest.raises(ConfigError, match=r"2 weights missing, such as classifier\.bias"):
        imported(tensorflow_folder, tmp_path / "run")
