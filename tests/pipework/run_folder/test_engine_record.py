import math

import pytest
from pydantic import ValidationError

from pipework.run_folder.engine_record import (
    EngineBuild,
    EngineRecord,
    Layout,
    ParityScores,
    Precision,
    Scaling,
    Speed,
    Variant,
    engine_digest,
)
from pipework.run_folder.files import FileRecord
from tests.checked_manifest import TOLERANCE, parity


def file(path, sha256="a" * 64):
    return FileRecord(path=path, sha256=sha256, size=1)


def record(parity):
    return EngineRecord(
        name="onnx-fp32",
        format="onnx",
        precision=Precision.FP32,
        layout=Layout.PADDED,
        files=(file("engines/onnx-fp32/model.onnx"),),
        built=EngineBuild(opset=17, built_with={}),
        parity=parity,
        tolerance=TOLERANCE,
    )


@pytest.mark.parametrize(
    ("parts", "label"),
    [
        (("onnx", Precision.FP32, Layout.PADDED, None), "onnx-fp32"),
        (("openvino", Precision.BF16, Layout.PACKED, None), "openvino-bf16-packed"),
        (
            ("onnx", Precision.INT8, Layout.PACKED, Scaling.STATIC),
            "onnx-int8-static-packed",
        ),
        (("onnx", Precision.INT8, Layout.PADDED, Scaling.DYNAMIC), "onnx-int8-dynamic"),
    ],
)
def test_the_label_names_each_part_that_is_not_the_default(parts, label):
    fields = zip(("format", "precision", "layout", "scaling"), parts, strict=True)
    assert Variant(**dict(fields)).label == label


def test_an_engine_is_proven_only_by_a_passed_parity_check():
    assert record(parity()).proven
    assert not record(parity(passed=False)).proven
    assert not record(None).proven  # built, not run


def test_a_failed_parity_may_have_differences_that_are_not_finite():
    assert math.isnan(parity(passed=False, max_abs=math.nan).max_abs)
    with pytest.raises(ValidationError, match="finite number"):
        Speed(texts_per_s=math.inf, batch=8, p50_ms=1, rows=1, threads=1, processor="a processor")


def test_a_decrease_of_the_score_is_negative():
    scores = ParityScores(reference=0.9, engine=0.85, low=-0.1, high=0.0)
    assert scores.change == pytest.approx(-0.05)


def test_the_digest_depends_on_names_and_contents_but_not_on_folder_and_order():
    files = (file("engines/a/model.xml"), file("engines/a/model.bin", "b" * 64))
    moved = (file("1/model.bin", "b" * 64), file("1/model.xml"))
    assert engine_digest(files) == engine_digest(moved)
    assert len(engine_digest(files)) == 64
    renamed = (file("engines/a/other.xml"), files[1])
    changed = (file("engines/a/model.xml", "c" * 64), files[1])
    assert len({engine_digest(given) for given in (files, renamed, changed, files[:1])}) == 4


def test_a_record_is_read_from_its_json_with_its_digest():
    written = record(parity())
    read = EngineRecord.model_validate_json(written.model_dump_json())
    assert read == written
    assert read.digest == engine_digest(written.files)
