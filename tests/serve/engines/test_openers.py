"""Openers of engines, with a run folder and the runtime of its engine."""

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.machine import cpu_limit
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.openers import LocalOpener
from pipework.serve.engines.tensorrt_packages import gpu_or_none
from pipework.text.encoding import TextEncoder


def test_further_instances_answer_as_the_first(run):
    manifest, opener = read_manifest(run), LocalOpener()
    encoder = TextEncoder.open(run / "tokenizer.json", max_length=32, type_ids=False)
    encodings = encoder.encode([Example(text="rain"), Example(text="goal team")])
    record, first = opener.first(run, manifest, None, 1)
    assert record == manifest.engines[0]
    with first, opener.again(run, manifest, record.name, 1) as again:
        assert again is not first
        np.testing.assert_array_equal(again.infer(encodings).values, first.infer(encodings).values)


def test_an_engine_without_reference_rows_is_opened_but_not_proven_again(run):
    manifest = read_manifest(run)
    _, engine = LocalOpener().first(run, manifest, None, 1)
    engine.close()
    with pytest.raises(PipeError, match="rows"):
        LocalOpener(prove=True).first(run, manifest, None, 1)


def test_a_proof_is_made_on_the_reference_rows(kept_run):
    record, engine = LocalOpener(prove=True).first(kept_run, read_manifest(kept_run), None, 1)
    engine.close()
    assert record.name == "onnx"


def test_a_cpu_has_at_most_two_engines(run):
    expected = 1 if gpu_or_none() is not None else min(2, cpu_limit())
    assert LocalOpener().instances(read_manifest(run), None) == expected
