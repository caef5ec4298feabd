from importlib.metadata import version

import pytest

from pipework.errors import ConfigError
from pipework.export.build import build
from pipework.export.convert.checkpoint2onnx import EXPORTER
from pipework.export.quantize.onnx2int8 import LayerPrecisions
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest


def test_the_exporter_and_the_packages_are_recorded_with_their_versions(exported_run):
    found = read_manifest(exported_run).engines[0].built.built_with
    assert found["exporter"] == EXPORTER
    for package in ("torch", "transformers", "onnx"):
        assert found[package] == version(package)
    assert len(found) == 4


def test_a_build_is_in_float32_without_fallback_layers_unless_it_says_otherwise():
    layers = LayerPrecisions()
    assert (layers.int8, layers.fallback) == (frozenset(), ())
    assert layers.fallback_precision is Precision.FP32


@pytest.mark.parametrize("layout", Layout)
def test_onnxruntime_in_bf16_is_rejected_before_anything_is_written(tmp_path, layout):
    variant = Variant(format="onnx", precision=Precision.BF16, layout=layout)
    with pytest.raises(ConfigError, match="does not support bf16") as caught:
        build(variant, None, tmp_path, lambda _: None, NullProgress())
    assert caught.value.hint == "use --to openvino --precision bf16"
    assert list(tmp_path.iterdir()) == []
