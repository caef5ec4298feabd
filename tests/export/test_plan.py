import pytest

from pipework.errors import ConfigError
from pipework.export import plan
from pipework.export.plan import asked
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Target
from pipework.run_folder.manifest import read_manifest


@pytest.fixture(scope="session")
def manifest(trained_run):
    return read_manifest(trained_run)


def labels(variants):
    return [variant.label for variant in variants]


def test_what_is_left_out_is_fp32_and_padded(manifest):
    assert labels(asked(manifest, Target.ONNX, None, None)) == ["onnx-fp32"]
    assert labels(asked(manifest, Target.OPENVINO, Precision.BF16, Layout.PACKED)) == [
        "openvino-bf16-packed"
    ]


def test_int8_of_onnxruntime_is_tried_with_either_scaling(manifest):
    found = asked(manifest, Target.ONNX, Precision.INT8, None)
    assert [one.scaling for one in found] == [Scaling.DYNAMIC, Scaling.STATIC]
    (only,) = asked(manifest, Target.OPENVINO, Precision.INT8, None)
    assert only.scaling is Scaling.STATIC


def test_an_engine_that_does_not_exist_is_answered_with_those_that_do(manifest):
    with pytest.raises(ConfigError, match="no engine of --to onnx --precision bf16") as caught:
        asked(manifest, Target.ONNX, Precision.BF16, None)
    assert "openvino: fp32, bf16, int8" in caught.value.hint


def test_auto_is_all_that_runs_here_each_once(manifest, monkeypatch):
    monkeypatch.setattr(plan, "computes_bf16", lambda: True)
    found = labels(asked(manifest, Target.AUTO, None, None))
    assert {"onnx-fp32", "onnx-int8-dynamic-packed", "openvino-bf16-packed"} <= set(found)
    assert len(set(found)) == len(found)
    assert not [name for name in found if name.startswith(EngineFormat.TENSORRT)]


def test_auto_leaves_bf16_to_processors_that_have_it(manifest, monkeypatch):
    monkeypatch.setattr(plan, "computes_bf16", lambda: False)
    assert "openvino-bf16" not in labels(asked(manifest, Target.AUTO, None, None))


def test_auto_of_one_layout_or_precision_is_that_one(manifest):
    packed = asked(manifest, Target.AUTO, None, Layout.PACKED)
    assert {one.layout for one in packed} == {Layout.PACKED}
    exact = asked(manifest, Target.AUTO, Precision.FP32, None)
    assert {one.precision for one in exact} == {Precision.FP32}


def test_a_family_that_cannot_be_packed_stays_padded(manifest):
    model = manifest.model.model_copy(update={"family": "xlnet"})
    found = asked(manifest.model_copy(update={"model": model}), Target.AUTO, None, None)
    assert {one.layout for one in found} == {Layout.PADDED}
