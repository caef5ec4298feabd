"""Triton configs, compared with the files in `golden/`."""

from pathlib import Path

import pytest

from pipework.export.config import TritonBackend, TritonSettings
from pipework.export.triton.triton_config import (
    differing_fields,
    from_text,
    signature,
    tensor_config,
    text_config,
    to_text,
    warmup_files,
)
from pipework.run_folder.engine_record import EngineBuild, Layout, ShapeProfile
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.onnxruntime import CUDA, PROVIDER_OPTIONS

GOLDEN = Path(__file__).with_name("golden")
PYTHON = TritonSettings()
ONNX = TritonSettings(backend=TritonBackend.ONNXRUNTIME, instances=2)
TENSORRT = TritonSettings(backend=TritonBackend.TENSORRT)


@pytest.fixture(scope="module")
def manifest(exported_run):
    return read_manifest(exported_run)


def with_fields(manifest, *fields, type_ids=True):
    changed = {"fields": fields, "type_ids": type_ids}
    return manifest.model_copy(update={"input": manifest.input.model_copy(update=changed)})


def with_engine(manifest, **changed):
    (record,) = manifest.engines
    return manifest.model_copy(update={"engines": (record.model_copy(update=changed),)})


def shapes(texts, tokens):
    return {"input_ids": (texts, tokens), "attention_mask": (texts, tokens)}


def built():
    """Two profiles: many short texts, fewer long texts."""
    profiles = tuple(
        ShapeProfile(smallest=shapes(1, 1), usual=shapes(8, tokens), largest=shapes(texts, tokens))
        for texts, tokens in ((64, 32), (16, 128))
    )
    return EngineBuild(
        opset=17,
        built_with={"tensorrt": "11.0"},
        target="one GPU",
        profiles=profiles,
    )


def proven_on_gpu(manifest):
    return manifest.engines[0].parity.model_copy(update={"on_gpu": True})


def configs(manifest):
    yield "text", text_config("topics", manifest, PYTHON)
    pair = with_fields(manifest, "text", "text_pair")
    yield "text-pair", text_config("topics", pair, TritonSettings(instances=2, batch=8, versions=1))
    yield "text-before-a-model", text_config("topics", manifest, ONNX)
    marked = with_fields(manifest, "text", "entities")
    spans = marked.model_copy(update={"model": marked.model.model_copy(update={"head": "entity"})})
    yield "onnxruntime", tensor_config("topics", spans, ONNX)
    packed = with_engine(manifest, layout=Layout.PACKED)
    yield "onnxruntime-packed", tensor_config("topics", packed, ONNX)
    states = manifest.engines[0].built.model_copy(update={"first_only": False})
    plain = with_fields(manifest, "text", type_ids=False)
    every = with_engine(plain, layout=Layout.PACKED, built=states)
    yield (
        "onnxruntime-packed-states",
        tensor_config("topics", every, ONNX),
    )
    on_gpu = with_engine(manifest, parity=proven_on_gpu(manifest))
    yield "onnxruntime-cuda", tensor_config("topics", on_gpu, ONNX)
    varlen = with_engine(manifest, layout=Layout.VARLEN, parity=proven_on_gpu(manifest))
    yield "onnxruntime-varlen", tensor_config("topics", varlen, ONNX)
    trt = with_engine(manifest, format="tensorrt", built=built(), parity=proven_on_gpu(manifest))
    yield "text-before-tensorrt", text_config("topics", trt, TENSORRT)
    yield "tensorrt", tensor_config("topics", trt, TENSORRT)


def test_the_configs_match_the_golden_files(manifest):
    written = {name: to_text(config) for name, config in configs(manifest)}
    golden = {path.stem: path.read_text() for path in sorted(GOLDEN.glob("*.pbtxt"))}
    assert written == golden


def test_the_cuda_provider_of_triton_gets_the_options_of_the_server(manifest):
    config = dict(configs(manifest))["onnxruntime-cuda"]
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "cuda"
    assert dict(accelerator.parameters) == PROVIDER_OPTIONS[CUDA]
    assert accelerator.parameters["use_tf32"] == "0"
    # The backend overrides the accelerator by 0, EXHAUSTIVE, if this parameter is missing.
    assert config.parameters["cudnn_conv_algo_search"].string_value == "1"


def test_a_config_survives_a_round_trip(manifest):
    for _, config in configs(manifest):
        assert from_text(to_text(config)) == config


def test_batches_for_a_tensorrt_engine_fit_its_profiles(manifest):
    assert dict(configs(manifest))["text-before-tensorrt"].max_batch_size == 16


def test_the_signature_ignores_instances_but_not_inputs(manifest):
    mine = text_config("topics", manifest, TritonSettings(instances=3, batch=9, versions=4))
    assert (
        differing_fields(signature(mine), signature(text_config("topics", manifest, PYTHON))) == []
    )
    on_gpu = tensor_config("topics", with_engine(manifest, parity=proven_on_gpu(manifest)), ONNX)
    assert signature(on_gpu) == signature(tensor_config("topics", manifest, ONNX))
    pair = text_config("topics", with_fields(manifest, "text", "text_pair"), PYTHON)
    assert differing_fields(signature(mine), signature(pair)) == ["input"]


def test_the_warm_up_text_fits_the_model(manifest):
    ((name, plain),) = warmup_files(manifest).items()
    ((_, marked),) = warmup_files(with_fields(manifest, "text", "entities")).items()
    assert name == "warmup/text"
    assert int.from_bytes(plain[:4], "little") == len(plain) - 4
    assert b"<e1>" not in plain
    assert b"<e1>" in marked


def test_an_invalid_config_is_reported_with_its_position():
    with pytest.raises(ValueError, match=r"^2:1 "):
        from_text('name: "x"\nnothing: 1\n')
