"""The run folders of the matrix behave like those of a training run."""

import numpy as np
import pytest

from pipework.benchmarks.studies.matrix import random_encoder, random_run
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.export.inference import split_source
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import label_array
from pipework.text.encoding import open_encoder
from pipework.train.config.model import Head
from pipework.train.model.checkpoint_engine import open_reference


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return random_encoder(EncoderFamily.DISTILBERT, tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("head", [Head.CNN, Head.ENTITY])
def test_its_logits_differ_between_classes(encoder, head, tmp_path):
    run = random_run(encoder, head, tmp_path / "run")
    manifest = read_manifest(run)
    source = split_source(run, manifest, "dev")
    examples = list(source.rows())
    encodings = open_encoder(run, manifest).encode(examples)
    with open_reference(run, manifest) as checkpoint:
        logits_NC = checkpoint.infer(encodings).values
    assert (logits_NC.argmax(1) == label_array(examples, manifest.task, "dev")).mean() > 0.5
    ranked_NC = np.sort(logits_NC, axis=1)
    assert np.median(ranked_NC[:, -1] - ranked_NC[:, -2]) > 0.5
    assert manifest.model.takes_spans == manifest.input.marked == (head is Head.ENTITY)
