"""The device of a checkpoint that runs as an engine."""

import numpy as np
import pytest
import torch

from pipework.data.examples import Example
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import open_encoder
from pipework.train.loop.determinism import exact_float32
from pipework.train.model.checkpoint_engine import CPU, open_reference


@pytest.fixture
def encodings(trained_run):
    examples = [Example(text="rain " * count) for count in range(9)]
    return open_encoder(trained_run, read_manifest(trained_run)).encode(examples)


def failing_once(engine):
    """Make the model of an engine raise the error of a GPU without memory at its first call."""
    failures = iter([torch.OutOfMemoryError("CUDA out of memory")])

    def fail(_module, _inputs):
        for error in failures:
            raise error

    def watched(model):
        model.register_forward_pre_hook(fail)
        return model

    return engine.with_model(watched)


def test_a_reference_without_memory_continues_on_the_cpu(trained_run, encodings, caplog):
    manifest = read_manifest(trained_run)
    expected_NC = open_reference(trained_run, manifest).infer(encodings).values
    engine = failing_once(open_reference(trained_run, manifest, spare=CPU))
    found_NC = engine.infer(encodings).values
    assert np.array_equal(found_NC, expected_NC)
    # An exporter of an earlier test may log in its thread.
    (record,) = [one for one in caplog.records if one.name.startswith("pipework")]
    assert record.message == "cpu has too little memory; the checkpoint continues on cpu"


def test_a_copy_of_a_reference_without_memory_is_made_on_the_cpu(trained_run, encodings):
    engine = open_reference(trained_run, read_manifest(trained_run), spare=CPU)
    attempts = []

    def copied(model):
        attempts.append(model)
        if len(attempts) == 1:
            raise torch.OutOfMemoryError
        return model

    assert len(engine.with_model(copied).infer(encodings).values) == len(encodings)
    assert len(attempts) == 2


def test_an_engine_without_another_device_reports_that_memory_runs_out(trained_run, encodings):
    engine = failing_once(open_reference(trained_run, read_manifest(trained_run)))
    with pytest.raises(torch.OutOfMemoryError):
        engine.infer(encodings)


def test_exact_float32_disables_tf32_for_all_layers():
    torch.set_float32_matmul_precision("high")
    try:
        with exact_float32():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
