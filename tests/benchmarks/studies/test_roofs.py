"""Roofs are measured in the runtime, precision and scaling of an engine."""

from pathlib import Path

import pytest

from pipework.benchmarks.studies.records.grid_results import column_of
from pipework.benchmarks.studies.roofs import EncoderShape, bandwidth_gb_s, roof_gflops
from pipework.errors import ConfigError
from pipework.export.plan import all_variants
from pipework.run_folder.engine_record import Layout, Variant
from pipework.run_folder.manifest import read_manifest

SMALL = EncoderShape(
    hidden_size=64, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2
)
TINY = EncoderShape(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
ENGINES = {variant.label: variant for variant in all_variants()}
INT8, FP32 = ENGINES["openvino-int8-static-packed"], ENGINES["onnx-fp32-packed"]


def test_engines_with_the_same_runtime_and_arithmetic_share_a_roof() -> None:
    assert column_of(INT8) == ("openvino int8 static", True)
    assert column_of(FP32)[0] == column_of(FP32.model_copy(update={"layout": Layout.PADDED}))[0]


@pytest.mark.parametrize("variant", [FP32, INT8], ids=lambda variant: variant.label)
def test_a_roof_is_measured_in_the_runtime_of_its_engine(
    variant: Variant, exported_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipework.benchmarks.studies.roofs.LARGE", SMALL)
    assert 0.01 < roof_gflops(variant, read_manifest(exported_run)) < 1e5


def test_large_products_are_faster_than_small_ones(
    exported_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(exported_run)
    large = roof_gflops(FP32, manifest)
    monkeypatch.setattr("pipework.benchmarks.studies.roofs.LARGE", TINY)
    assert roof_gflops(FP32, manifest) < large / 2


def test_a_roof_of_tensorrt_is_refused(exported_run: Path) -> None:
    variant = FP32.model_copy(update={"format": "tensorrt"})
    with pytest.raises(
        ConfigError, match="expected an ONNX or OpenVINO engine, found an engine of tensorrt"
    ):
        roof_gflops(variant, read_manifest(exported_run))


def test_the_bandwidth_is_in_gigabytes_per_second() -> None:
    assert 0.5 < bandwidth_gb_s() < 1000
