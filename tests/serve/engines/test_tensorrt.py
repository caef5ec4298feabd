"""Engines of a GPU: refused in words where there is none; run, on a GPU or on a fake of one."""

import shutil

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import RunFolderError
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.tensorrt import TensorRt, TensorRtEngine, fitting
from pipework.serve.models.open_models import open_predictor
from tests.serve.conftest import TEXTS, encoded
from tests.serve.engines.conftest import collate

COLLATE = collate()
LENGTHS = (8, 16, 32)


def padded(texts, length):
    return dict.fromkeys(("input_ids", "attention_mask"), (texts, length))


PROFILES = [padded(8, length) for length in LENGTHS]


@pytest.fixture
def graph(run):
    return run / "engines/onnx/model.onnx"


@pytest.fixture
def encodings(run):
    return encoded(run, [Example(text=text) for text in TEXTS * 9])


@pytest.fixture
def engine(gpu, graph, tmp_path):
    path = gpu.write(tmp_path / "model.engine", graph, PROFILES)
    with TensorRtEngine(path, COLLATE, gpu.built) as engine:
        yield engine


def test_answers_come_in_the_order_of_the_inputs_whatever_the_calls(engine, graph, encodings):
    with OnnxRuntimeEngine(graph, COLLATE) as other:
        expected_NC = other.infer(encodings).values
    np.testing.assert_allclose(engine.infer(encodings).values, expected_NC, atol=1e-6)
    np.testing.assert_allclose(engine.infer(encodings[:3]).values, expected_NC[:3], atol=1e-6)
    assert engine.infer([]).values.shape == (0, 3)


def test_a_call_takes_the_smallest_profile_that_it_fits(engine, gpu, encodings):
    gpu.trt.profiles.clear()
    engine.infer(encodings)
    # 54 texts in calls of 8, the short ones first; 9 of them are longer than 8 tokens.
    assert gpu.trt.profiles == [0] * 5 + [2] * 2


def test_memory_is_taken_once_and_all_given_back(engine, gpu, encodings):
    before = {*gpu.cuda.kept}
    engine.infer(encodings)
    assert {*gpu.cuda.kept} == before
    engine.close()
    engine.close()
    assert gpu.cuda.kept == {}


def test_shapes_that_fit_no_profile_are_reported():
    ranges = {"input_ids": ((1, 1), (8, 16))}
    assert fitting([ranges, {"input_ids": ((1, 1), (8, 32))}], {"input_ids": (8, 17)}) == 1
    with pytest.raises(ValueError, match=r"no profile of the engine takes input_ids \[9, 4\]"):
        fitting([ranges], {"input_ids": (9, 4)})


def test_an_invalid_engine_file_is_reported_with_the_reason(gpu, tmp_path):
    (tmp_path / "model.engine").write_bytes(b"not an engine")
    expected = r"model\.engine is not a usable TensorRT engine: magic tag does not match"
    with pytest.raises(RunFolderError, match=expected):
        TensorRtEngine(tmp_path / "model.engine", COLLATE, gpu.built)


def test_an_engine_in_place_of_one_of_a_gpu_is_served_as_on_a_cpu(gpu, run, tmp_path, monkeypatch):
    folder = shutil.copytree(run, tmp_path / "run")
    file = folder / "engines/tensorrt/model.engine"
    file.parent.mkdir()
    file.write_bytes(b"not an engine")
    manifest = read_manifest(folder)
    changes = {"name": "tensorrt", "format": "tensorrt", "built": gpu.built}
    (record,) = manifest.engines
    broken = record.model_copy(update={**changes, "files": (record_file(folder, file),)})
    write_manifest(folder, manifest.model_copy(update={"engines": (broken, record)}))
    monkeypatch.setattr(TensorRt, "fits_here", lambda *_: True)
    monkeypatch.setattr("pipework.serve.engines.cpu_limit", lambda: 8)
    with open_predictor(folder) as predictor:
        assert predictor.engine == record.name
        assert predictor.scheduler.load.engines == 2


def test_a_failing_engine_frees_its_device_memory(gpu, graph, tmp_path):
    path = gpu.write(tmp_path / "model.engine", graph, PROFILES)
    gpu.trt.refusing = True
    with pytest.raises(RunFolderError, match="TensorRT rejected execution"):
        TensorRtEngine(path, COLLATE, gpu.built)
    assert gpu.cuda.kept == {}


def test_an_error_in_the_first_call_frees_the_device_memory(gpu, graph, tmp_path, monkeypatch):
    path = gpu.write(tmp_path / "model.engine", graph, PROFILES)
    monkeypatch.setattr(TensorRtEngine, "_start", lambda *_: {}["logits"])
    with pytest.raises(KeyError):
        TensorRtEngine(path, COLLATE, gpu.built)
    assert gpu.cuda.kept == {}


def test_an_engine_with_other_inputs_is_refused_with_both_lists(gpu, entity_run, tmp_path):
    other = entity_run / "engines/onnx/model.onnx"
    shapes = {**padded(8, 32), "entity_spans": (8, 4)}
    path = gpu.write(tmp_path / "model.engine", other, [shapes])
    with pytest.raises(RunFolderError, match="found attention_mask, entity_spans, input_ids"):
        TensorRtEngine(path, COLLATE, gpu.built)
