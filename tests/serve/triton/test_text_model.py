"""The model of Triton's Python backend without Triton: several requests in one call."""

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import InputError, RunFolderError
from pipework.predict.text_model import EngineModel
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import open_proven
from pipework.text.encoding import TextEncoder
from pipework.wire.text_tensors import InputTexts


@pytest.fixture
def answers(monkeypatch):
    """The function; only a process of Triton has the other module that its module imports."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace())
    monkeypatch.delitem(sys.modules, "pipework.serve.triton.python_model", raising=False)
    return importlib.import_module("pipework.serve.triton.python_model").answers


def opened(folder):
    manifest = read_manifest(folder)
    return EngineModel.open(folder, manifest, open_proven(folder, manifest))


def test_requests_computed_together_have_the_same_outputs_as_alone(run, answers):
    batch = [
        InputTexts(text=[b"rain"]),
        InputTexts(text=[b"goal", "票房".encode()]),
        InputTexts(text=[b""]),
    ]
    with opened(run) as model:
        together = answers(model, batch)
        alone = [answers(model, [texts])[0] for texts in batch]
    for one, other in zip(together, alone, strict=True):
        assert one.label_N.tolist() == other.label_N.tolist()
        assert one.outputs.values == pytest.approx(other.outputs.values, abs=1e-5)


def test_an_invalid_request_gets_its_error_and_does_not_affect_others(run, answers):
    good, bad = InputTexts(text=[b"rain", b"goal"]), InputTexts(text=[b"rain", b"\xff"])
    with opened(run) as model:
        first, error, last = answers(model, [good, bad, good])
        (alone,) = answers(model, [good])
        assert [type(one) for one in answers(model, [bad, bad])] == [InputError, InputError]
    assert str(error).startswith("input 1: text is not UTF-8")
    assert np.array_equal(first.outputs.values, last.outputs.values)
    assert first.outputs.values == pytest.approx(alone.outputs.values, abs=1e-5)


def test_the_engine_is_closed_if_the_tokenizer_cannot_be_opened(make_run):
    changed = make_run()
    manifest = read_manifest(changed)
    engine = open_proven(changed, manifest)
    encoder = TextEncoder.open(changed / "tokenizer.json", max_length=32, type_ids=False)
    encodings = encoder.encode([Example(text="rain")])
    assert engine.infer(encodings).values.shape == (1, 3)
    (changed / "tokenizer.json").unlink()
    with pytest.raises(RunFolderError, match=r"tokenizer\.json is missing"):
        EngineModel.open(changed, manifest, engine)
    with pytest.raises(RuntimeError, match="after shutdown"):  # its thread is gone
        engine.infer(encodings)
