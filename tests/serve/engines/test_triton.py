"""The engine for a tensor model; here ONNX Runtime computes instead of Triton."""

import shutil

import numpy as np
import onnxruntime
import pytest

from pipework.errors import CheckFailedError, NotReadyError, RunFolderError
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE
from pipework.serve.engines.triton import open_tensor_model

FOLDER = "engines/onnx"


class FakeTensorModel:
    """A model that a server may not have loaded yet; it counts the texts of each call."""

    def __init__(self, run):
        path = run / FOLDER / "model.onnx"
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.loaded, self.asked, self.wrong = True, [], 0.0

    def __call__(self, arrays):
        if not self.loaded:
            message = "not loaded"
            raise NotReadyError(message)
        (logits,) = self.session.run(["logits"], dict(arrays))
        self.asked.append(len(logits))
        return logits + np.float32(self.wrong)


def opened(front, ask, batch=64):
    run, model_folder, _ = front
    manifest = read_manifest(run)
    return open_tensor_model(
        run, manifest, ask, first_only=True, batch=batch, model_folder=model_folder
    )


def test_parity_is_checked_before_the_first_call_once_the_model_is_reachable(front, run):
    model, rows = FakeTensorModel(run), front[2]
    model.loaded = False
    engine = opened(front, model)
    with pytest.raises(NotReadyError, match="not loaded"):
        engine.infer(rows.encodings[:1])
    model.loaded = True
    assert engine.infer(rows.encodings[:1]).values == pytest.approx(
        rows.outputs.values[:1], abs=1e-5
    )
    assert model.asked == [1] * 42 + [32, 10] + [1]
    engine.infer(rows.encodings[:2])
    assert model.asked[45:] == [2]


def test_a_model_with_other_predictions_is_never_used(front, run):
    model, rows = FakeTensorModel(run), front[2]
    engine = opened(front, model)
    model.wrong = 0.01
    with pytest.raises(CheckFailedError, match="differ from the checkpoint on Triton's own"):
        engine.infer(rows.encodings[:1])
    asked = len(model.asked)
    with pytest.raises(CheckFailedError, match="differ from the checkpoint"):
        engine.infer(rows.encodings[:1])
    assert len(model.asked) == asked


def test_the_parity_check_respects_the_batch_limit(front, run):
    model = FakeTensorModel(run)
    opened(front, model, batch=8).infer(front[2].encodings[:1])
    assert max(model.asked) == 8


def test_a_changed_file_is_refused(front, run):
    front_run, model_folder, _ = front
    with (model_folder / "model.onnx").open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=r"front-engine/model\.onnx changed"):
        opened(front, FakeTensorModel(run))
    shutil.rmtree(model_folder)  # in a repository that is not on this disk
    opened(front, FakeTensorModel(run))
    with (front_run / FOLDER / REFERENCE_ROWS_FILE).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=r"rows\.npz changed"):
        opened(front, FakeTensorModel(run))
