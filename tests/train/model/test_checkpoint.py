"""The checkpoint folder of a run answers through transformers as the run does."""

import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from pipework.data.examples import Example
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import TextEncoder
from pipework.train.config.run_config import run_config
from pipework.train.model.checkpoint_engine import open_reference


@pytest.fixture(scope="module")
def folder(trained_run, tmp_path_factory):
    """A copy of RUN/checkpoint alone."""
    return shutil.copytree(trained_run / "checkpoint", tmp_path_factory.mktemp("copy") / "model")


@pytest.fixture(scope="module")
def texts(trained_run):
    rows = run_config(trained_run).sources()["dev"].rows()
    return [row.text for row in rows] + ["", "a  b\u3000雨 Émile", "word " * 2000]


def test_auto_tokenizer_and_auto_model_answer_as_the_run_does(trained_run, folder, texts):
    manifest = read_manifest(trained_run)
    limits = {"max_length": manifest.input.max_length, "type_ids": manifest.input.type_ids}
    encoder = TextEncoder.open(trained_run / "tokenizer.json", **limits)
    encodings = encoder.encode([Example(text=text) for text in texts])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    for encoding, ids, mask in zip(encodings, batch.input_ids, batch.attention_mask, strict=True):
        assert ids[mask.bool()].tolist() == list(encoding.ids)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        found_NC = model(**batch).logits.numpy()
    expected_NC = open_reference(trained_run, manifest).infer(encodings).values
    np.testing.assert_allclose(found_NC, expected_NC, atol=1e-4)


def test_a_pipeline_uses_the_labels_and_the_length_of_the_run(trained_run, folder, texts):
    classify = pipeline("text-classification", model=str(folder))
    labels = read_manifest(trained_run).task.labels
    assert {answer["label"] for answer in classify(texts, truncation=True)} <= {*labels}
    assert classify.tokenizer.pad_token_id == read_manifest(trained_run).input.pad_id
