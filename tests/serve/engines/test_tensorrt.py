"""Engines of a GPU: refused in words where there is none; run, on a GPU or on a fake of one."""

import importlib.util

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cuda import DeviceArrays, Gpu, NoGpuError, find_gpu
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.tensorrt import TensorRtEngine, fitting
from pipework.serve.engines.tensorrt_packages import check_fits, gpu_or_none, load
from pipework.text.encoding import TextEncoder
from pipework.text.padding import Padding

COLLATE = Collate(layout=Layout.PADDED, padding=Padding(pad_id=0, type_ids=False), spans=False)
TEXTS = ["rain", "goal team match", "bank rate stock " * 8, "", "sun wind " * 3, "goal"] * 9
LENGTHS = (8, 16, 32)


def padded(texts, length):
    return dict.fromkeys(("input_ids", "attention_mask"), (texts, length))


PROFILES = [padded(8, length) for length in LENGTHS]


@pytest.fixture
def graph(run):
    return run / "engines/onnx/model.onnx"


@pytest.fixture
def encodings(run):
    encoder = TextEncoder.open(run / "tokenizer.json", max_length=32, type_ids=False)
    return encoder.encode([Example(text=text) for text in TEXTS])


@pytest.fixture
def engine(gpu, graph, tmp_path):
    path = gpu.write(tmp_path / "model.engine", graph, PROFILES)
    with TensorRtEngine(path, COLLATE, gpu.built) as engine:
        yield engine


def test_answers_come_in_the_order_of_the_inputs_whatever_the_calls(engine, graph, encodings):
    with OnnxRuntimeEngine(graph, COLLATE) as other:
        expected_NC = other.infer(encodings)
    np.testing.assert_allclose(engine.infer(encodings), expected_NC, atol=1e-6)
    np.testing.assert_allclose(engine.infer(encodings[:3]), expected_NC[:3], atol=1e-6)
    assert engine.infer([]).shape == (0, 3)


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


def test_a_device_without_room_says_so_and_keeps_nothing(gpu):
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        DeviceArrays({"small": 64, "large": 1 << 40})
    assert gpu.cuda.kept == {}


def test_whatever_of_the_memory_is_refused_the_rest_is_given_back(gpu, monkeypatch):
    refused = gpu.cuda.cudaError_t.cudaErrorMemoryAllocation, None
    monkeypatch.setattr(gpu.cuda, "cudaMallocHost", lambda _size: refused)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        DeviceArrays({"x": 64})
    assert gpu.cuda.kept == {}
    monkeypatch.setattr(gpu.cuda, "cudaStreamCreate", lambda: refused)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        DeviceArrays({"x": 64})


def test_an_array_larger_than_its_room_is_refused(gpu):
    del gpu
    with (
        DeviceArrays({"ids": 64}) as arrays,
        pytest.raises(ValueError, match=r"ids \[9\] is large"),
    ):
        arrays.upload("ids", np.zeros(9, np.int64))


def test_what_comes_back_is_not_overwritten_by_the_next_call(gpu):
    del gpu
    with DeviceArrays({"x": 16}) as arrays:
        arrays.upload("x", np.array([1, 2], np.int64))
        first = arrays.download("x", (2,), np.int64)
        arrays.upload("x", np.array([3, 4], np.int64))
        assert arrays.download("x", (2,), np.int64).tolist() == [3, 4]
    assert first.tolist() == [1, 2]


def test_shapes_that_no_profile_takes_are_told():
    ranges = {"input_ids": ((1, 1), (8, 16))}
    assert fitting([ranges, {"input_ids": ((1, 1), (8, 32))}], {"input_ids": (8, 17)}) == 1
    with pytest.raises(ValueError, match=r"no profile of the engine takes input_ids \[9, 4\]"):
        fitting([ranges], {"input_ids": (9, 4)})


def test_a_file_that_is_no_engine_is_named_with_the_reason(gpu, tmp_path):
    (tmp_path / "model.engine").write_bytes(b"not an engine")
    expected = r"model\.engine is not an engine to serve: magic tag does not match"
    with pytest.raises(RunFolderError, match=expected):
        TensorRtEngine(tmp_path / "model.engine", COLLATE, gpu.built)


def test_an_engine_that_does_not_run_leaves_nothing_on_the_device(gpu, graph, tmp_path):
    path = gpu.write(tmp_path / "model.engine", graph, PROFILES)
    gpu.trt.refusing = True
    with pytest.raises(RunFolderError, match="TensorRT refused execution"):
        TensorRtEngine(path, COLLATE, gpu.built)
    assert gpu.cuda.kept == {}


def test_whatever_ends_the_first_call_leaves_nothing_on_the_device(
    gpu, graph, tmp_path, monkeypatch
):
    path = gpu.write(tmp_path / "model.engine", graph, PROFILES)
    monkeypatch.setattr(TensorRtEngine, "_start", lambda *_: {}["logits"])
    with pytest.raises(KeyError):
        TensorRtEngine(path, COLLATE, gpu.built)
    assert gpu.cuda.kept == {}


def test_the_package_that_an_engine_needs_is_the_one_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for flavour, extra in (("tensorrt", "gpu"), ("tensorrt_rtx", "tensorrt-rtx")):
        with pytest.raises(MissingDependencyError, match=f"{flavour} is not installed") as caught:
            load(flavour)
        assert caught.value.hint == f"pip install 'pipework[{extra}]'"


def test_an_engine_with_other_inputs_is_refused_with_both_lists(gpu, entity_run, tmp_path):
    other = entity_run / "engines/onnx/model.onnx"
    shapes = {**padded(8, 32), "entity_spans": (8, 4)}
    path = gpu.write(tmp_path / "model.engine", other, [shapes])
    with pytest.raises(RunFolderError, match="found attention_mask, entity_spans, input_ids"):
        TensorRtEngine(path, COLLATE, gpu.built)


L4 = Gpu(name="Fake L4", capability=89)


def test_an_engine_of_another_version_or_gpu_is_refused_in_words(gpu):
    check_fits(gpu.built, gpu.built.version, L4)
    with pytest.raises(RunFolderError, match=r"built with tensorrt_rtx 1\.7\.1; here is 1\.8"):
        check_fits(gpu.built, "1.8", L4)
    expected = r"built for compute capabilities 8\.6, 8\.9; here is Old of compute capability 7\.5"
    with pytest.raises(NoGpuError, match=expected) as caught:
        check_fits(gpu.built, gpu.built.version, Gpu(name="Old", capability=75))
    assert "pipe export RUN --to tensorrt" in caught.value.hint
    named = gpu.built.model_copy(update={"target": "Fake L4"})
    check_fits(named, named.version, L4)
    with pytest.raises(NoGpuError, match="built for Fake L4; here is Other"):
        check_fits(named, named.version, Gpu(name="Other", capability=89))


def test_without_a_gpu_the_reason_is_given():
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here")
    with pytest.raises(NoGpuError, match=r"there is no NVIDIA GPU here \(cudaError"):
        find_gpu()


def test_without_cuda_python_the_install_command_is_given(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="cuda-python is not installed") as caught:
        find_gpu()
    assert caught.value.hint == "pip install cuda-python"


@pytest.mark.gpu
def test_arrays_come_back_from_a_real_gpu_as_they_went():
    if gpu_or_none() is None:
        pytest.skip("needs a CUDA device")
    given = np.arange(1000, dtype=np.int64).reshape(10, 100)
    with DeviceArrays({"x": given.nbytes}) as arrays:
        arrays.upload("x", given)
        np.testing.assert_array_equal(arrays.download("x", (10, 100), np.int64), given)
