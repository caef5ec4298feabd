"""The configs as files: `golden/` holds what Triton is given, to be read by people too."""

from pathlib import Path

import pytest

from pipework.export.config import Backend, TritonSettings
from pipework.export.triton.triton_config import (
    differing,
    from_text,
    signature,
    tensor_config,
    text_config,
    to_text,
    warmup_files,
)
from pipework.run_folder.engine_record import EngineFormat, Layout, Profile, TensorRt
from pipework.run_folder.manifest import read_manifest

GOLDEN = Path(__file__).with_name("golden")
PYTHON = TritonSettings()
ONNX = TritonSettings(backend=Backend.ONNXRUNTIME, instances=2)
TENSORRT = TritonSettings(backend=Backend.TENSORRT)


@pytest.fixture(scope="module")
def manifest(exported_run):
    return read_manifest(exported_run)


def given(manifest, *fields, type_ids=True):
    changed = {"fields": fields, "type_ids": type_ids}
    return manifest.model_copy(update={"input": manifest.input.model_copy(update=changed)})


def with_engine(manifest, **changed):
    (record,) = manifest.engines
    return manifest.model_copy(update={"engines": (record.model_copy(update=changed),)})


def shapes(texts, tokens):
    return {"input_ids": (texts, tokens), "attention_mask": (texts, tokens)}


def built():
    """Two profiles, for short texts and for long ones, which take fewer."""
    profiles = tuple(
        Profile(smallest=shapes(1, 1), usual=shapes(8, tokens), largest=shapes(texts, tokens))
        for texts, tokens in ((64, 32), (16, 128))
    )
    return TensorRt(flavour="tensorrt", version="11.0", target="one GPU", profiles=profiles)


def configs(manifest):
    yield "text", text_config("topics", manifest, PYTHON)
    pair = given(manifest, "text", "text_pair")
    yield "text-pair", text_config("topics", pair, TritonSettings(instances=2, batch=8, versions=1))
    yield "text-before-a-model", text_config("topics", manifest, ONNX, first_only=True)
    marked = given(manifest, "text", "entities")
    spans = marked.model_copy(update={"model": marked.model.model_copy(update={"head": "entity"})})
    yield "onnxruntime", tensor_config("topics", spans, ONNX, first_only=True, on_gpu=False)
    packed = with_engine(manifest, layout=Layout.PACKED)
    yield "onnxruntime-packed", tensor_config("topics", packed, ONNX, first_only=True, on_gpu=False)
    every = with_engine(given(manifest, "text", type_ids=False), layout=Layout.PACKED)
    yield (
        "onnxruntime-packed-states",
        tensor_config("topics", every, ONNX, first_only=False, on_gpu=False),
    )
    trt = with_engine(manifest, format=EngineFormat.TENSORRT, tensorrt=built())
    yield "text-before-tensorrt", text_config("topics", trt, TENSORRT, first_only=True)
    yield "tensorrt", tensor_config("topics", trt, TENSORRT, first_only=True, on_gpu=True)


def test_the_configs_are_those_of_the_golden_files(manifest):
    written = {name: to_text(config) for name, config in configs(manifest)}
    golden = {path.stem: path.read_text() for path in sorted(GOLDEN.glob("*.pbtxt"))}
    assert written == golden


def test_a_config_is_read_as_it_was_written(manifest):
    for _, config in configs(manifest):
        assert from_text(to_text(config)) == config


def test_no_text_before_a_tensorrt_engine_is_merged_beyond_what_its_profiles_take(manifest):
    assert dict(configs(manifest))["text-before-tensorrt"].max_batch_size == 16


def test_what_runs_a_model_can_be_changed_and_what_it_takes_and_gives_cannot(manifest):
    mine = text_config("topics", manifest, TritonSettings(instances=3, batch=9, versions=4))
    assert differing(signature(mine), signature(text_config("topics", manifest, PYTHON))) == []
    pair = text_config("topics", given(manifest, "text", "text_pair"), PYTHON)
    assert differing(signature(mine), signature(pair)) == ["input"]


def test_the_text_of_the_warm_up_is_one_that_the_model_takes(manifest):
    ((name, plain),) = warmup_files(manifest).items()
    ((_, marked),) = warmup_files(given(manifest, "text", "entities")).items()
    assert name == "warmup/text"
    assert int.from_bytes(plain[:4], "little") == len(plain) - 4
    assert b"<e1>" not in plain
    assert b"<e1>" in marked


def test_a_text_that_is_no_config_is_told_with_its_place():
    with pytest.raises(ValueError, match=r"^2:1 "):
        from_text('name: "x"\nnothing: 1\n')
