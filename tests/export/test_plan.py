import sys

import pytest

from pipework import machine
from pipework.errors import ConfigError, MissingDependencyError
from pipework.export.plan import AUTO, all_variants, select_variants, time_left
from pipework.run_folder.engine_record import Layout, Precision, Scaling
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import openvino


@pytest.fixture(scope="session")
def manifest(trained_run):
    return read_manifest(trained_run)


def labels(variants):
    return [variant.label for variant in variants]


def test_the_defaults_are_fp32_and_padded(manifest):
    assert labels(select_variants(manifest, "onnx", None, None)) == ["onnx-fp32"]
    assert labels(select_variants(manifest, "openvino", Precision.BF16, Layout.PACKED)) == [
        "openvino-bf16-packed"
    ]


def test_int8_of_onnxruntime_has_both_scalings(manifest):
    found = select_variants(manifest, "onnx", Precision.INT8, None)
    assert [one.scaling for one in found] == [Scaling.DYNAMIC, Scaling.STATIC]


@pytest.mark.parametrize(
    ("instructions", "scalings"),
    [
        ("avx2", [Scaling.STATIC]),
        ("avx2 avx512_vnni", [Scaling.STATIC, Scaling.GROUPED]),
        ("avx2 avx512_vnni amx_int8", [Scaling.STATIC]),
    ],
)
def test_int8_of_openvino_is_grouped_where_the_runtime_multiplies_groups(
    manifest, monkeypatch, instructions, scalings
):
    monkeypatch.setattr(machine, "processor", lambda: f"A processor {instructions}")
    found = select_variants(manifest, "openvino", Precision.INT8, None)
    assert [one.scaling for one in found] == scalings
    recorded = all_variants()  # a run of another machine, whose engines are measured again
    moved = manifest.model_copy(update={"engines": recorded})
    found = select_variants(moved, "openvino", Precision.INT8, None)
    assert [one.scaling for one in found] == [Scaling.STATIC, Scaling.GROUPED]


def test_an_unsupported_variant_is_reported_with_the_supported_precisions(manifest):
    with pytest.raises(
        ConfigError, match="no engine variant matches --to onnx --precision bf16"
    ) as caught:
        select_variants(manifest, "onnx", Precision.BF16, None)
    assert "openvino: fp32, bf16, int8" in caught.value.hint


def test_tensorrt_without_a_builder_is_refused_at_once(manifest, monkeypatch):
    variants = select_variants(manifest, "tensorrt", None, None)
    assert labels(variants) == ["tensorrt-fp32"]
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(MissingDependencyError, match="no package that builds TensorRT") as caught:
        select_variants(manifest, "tensorrt", None, None)
    assert "pip install 'pipework[tensorrt-rtx]'" in caught.value.hint


def test_auto_selects_all_variants_that_run_here(manifest, monkeypatch):
    monkeypatch.setattr(openvino, "computes_bf16", lambda: True)
    found = labels(select_variants(manifest, AUTO, None, None))
    assert {"onnx-fp32", "onnx-int8-dynamic-packed", "openvino-bf16-packed"} <= set(found)
    assert len(set(found)) == len(found)
    assert not [name for name in found if name.startswith("tensorrt")]


def test_auto_omits_bf16_on_processors_without_it(manifest, monkeypatch):
    monkeypatch.setattr(openvino, "computes_bf16", lambda: False)
    assert "openvino-bf16" not in labels(select_variants(manifest, AUTO, None, None))


def test_auto_can_be_limited_to_a_layout_or_precision(manifest):
    packed = select_variants(manifest, AUTO, None, Layout.PACKED)
    assert {one.layout for one in packed} == {Layout.PACKED}
    exact = select_variants(manifest, AUTO, Precision.FP32, None)
    assert {one.precision for one in exact} == {Precision.FP32}


def test_a_family_without_packing_support_is_padded(manifest):
    model = manifest.model.model_copy(update={"family": "xlnet"})
    found = select_variants(manifest.model_copy(update={"model": model}), AUTO, None, None)
    assert {one.layout for one in found} == {Layout.PADDED}


@pytest.mark.parametrize(
    ("built", "speed_s", "expected"),
    [(0, 6, ""), (1, 0, ", about 90 s left"), (2, 9, ", about 2 min left")],
)
def test_the_time_left_covers_the_builds_and_the_measurement(built, speed_s, expected):
    assert time_left(30 * built, built, 4, speed_s) == expected
