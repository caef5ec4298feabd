"""Structural faults are refused in every precision and layout.

The limits of lower precisions must allow rounding errors, which hide a fault in the graph. So the
float32 graph is checked with the limits of float32 before anything is converted from it.
"""

import numpy as np
import pytest
from openvino import opset13

from pipework.benchmarks.studies.planted_faults import FAULTS as ALL_FAULTS
from pipework.benchmarks.studies.structural_faults import VARIANTS
from pipework.errors import CheckFailedError
from pipework.export import build as build_module
from pipework.export import parity_checker as run_module
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert import onnx2openvino
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Scaling
from pipework.run_folder.manifest import read_manifest
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=60, calibration_rows=40)
FAULTS = {name: fault for name, fault in ALL_FAULTS.items() if fault.run is None}
BY_NAME = {variant.label: variant for variant in VARIANTS}
DYNAMIC = [variant for variant in VARIANTS if variant.scaling is Scaling.DYNAMIC]
STATIC = BY_NAME["onnx-int8-static-packed"]
OPENVINO = [BY_NAME["openvino-fp32-packed"], BY_NAME["openvino-int8-static-packed"]]


def refusal(run, builder, variant):
    """Export, check that nothing is recorded, and return the error."""
    with pytest.raises(CheckFailedError, match="failed the parity check") as caught:
        export(run, NullProgress(), [variant], settings=QUICK, builder=builder)
    assert read_manifest(run).engines == ()
    assert not (run / "engines").exists()
    return caught.value


# int8 engines with these faults passed before the float32 graph was checked, and engines with a
# shifted class, see test_structural_faults.
HIDDEN = (
    "positions of the last eighth zeroed",
    "mask leaks (e^-5)",
    "embeddings of unused tokens times -3",
)


@pytest.mark.parametrize(
    "fault",
    [
        *repeated(HIDDEN),
        *(pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS if fault not in HIDDEN),
    ],
)
def test_a_fault_is_refused_before_the_conversion_to_int8(run, fault, monkeypatch):
    monkeypatch.setattr(build_module, "onnx_to_int8", None)  # an error if it is called
    error = refusal(run, FAULTS[fault], DYNAMIC[len(fault) % 2])
    assert str(error).startswith("onnx-fp32")


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_every_precision_and_layout(run, fault, name):
    refusal(run, FAULTS[fault], BY_NAME[name])


@pytest.mark.slow
def test_a_correct_graph_passes_in_every_precision_and_layout(run):
    records = export(run, NullProgress(), VARIANTS, settings=QUICK)
    assert {record.name for record in records if record.proven} == {*BY_NAME}
    assert {path.name for path in (run / "engines").rglob("*.onnx")} == {"model.onnx"}


@pytest.mark.thorough
def test_a_float32_graph_is_checked_once_per_layout(run, noting):
    export(run, noting, [*DYNAMIC, STATIC, *OPENVINO], settings=QUICK)
    checks = [line for line in noting.lines if "checking the float32 graph" in line]
    assert [line.split(":")[0] for line in checks] == [variant.label for variant in DYNAMIC]


def test_an_interrupted_check_of_a_float32_graph_is_repeated(run, noting, monkeypatch):
    def lacking(*_arguments, **_options):
        message = "not enough memory"
        raise MemoryError(message)

    monkeypatch.setattr(run_module, "open_engine", lacking)
    with pytest.raises(MemoryError):
        export(run, noting, [DYNAMIC[1], STATIC], settings=QUICK)
    assert sum("checking the float32 graph" in line for line in noting.lines) == 2
    assert read_manifest(run).engines == ()


def test_nothing_is_converted_from_a_float32_graph_that_was_refused(run, noting, monkeypatch):
    monkeypatch.setattr(build_module, "onnx_to_int8", None)  # an error if it is called
    variants = [BY_NAME["onnx-fp32-packed"], DYNAMIC[1]]
    with pytest.raises(CheckFailedError, match=r"^onnx-fp32-packed failed"):
        export(run, noting, variants, settings=QUICK, builder=FAULTS["two classes swapped"])


def test_a_fault_of_the_graph_that_openvino_compiles_is_refused_before_int8(run, monkeypatch):
    def shifted(model):
        """Add a constant to the first logit, which is within the limits of int8."""
        (result,) = model.get_results()
        logits = result.input_value(0)
        shift_C = np.zeros(logits.get_partial_shape()[1].get_length(), np.float32)
        shift_C[0] = 0.005
        sums = opset13.add(logits, opset13.constant(shift_C)).output(0)
        logits.get_tensor().set_names(set())
        sums.get_tensor().set_names({"logits"})
        result.input(0).replace_source_output(sums)

    monkeypatch.setattr(onnx2openvino, "_constant_reshapes", shifted)
    monkeypatch.setattr(build_module, "onnx_to_int8", None)
    error = refusal(run, build, OPENVINO[1])
    assert str(error).startswith("openvino-fp32-packed failed the parity check (max_abs")


def test_the_report_of_a_refused_float32_graph_names_its_layer(run, monkeypatch):
    monkeypatch.setattr(build_module, "onnx_to_fp16", None)
    error = refusal(run, FAULTS["positions of the second half zeroed"], BY_NAME["onnx-fp16-packed"])
    assert "bert.embeddings.position_embeddings" in error.details
    assert (run / "failed-exports" / "onnx-fp32-packed" / "report.txt").is_file()
