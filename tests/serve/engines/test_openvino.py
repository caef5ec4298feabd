import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.machine import NICE, computes_bf16, cpu_limit
from pipework.run_folder.engine_record import Layout, Precision
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.openvino import (
    PRECISION_PATH,
    ROW_STEP,
    OpenVinoEngine,
    precision_hint,
    shared_core,
)
from pipework.text.encoding import Encoding
from tests.commands import ForkedProcess
from tests.serve.engines.conftest import collate


def converted(run: Path, folder: Path) -> Path:
    """The graph of a run as an OpenVINO model."""
    path = folder / "model.xml"
    model = shared_core().read_model(run / "engines/onnx/model.onnx")
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def opened(
    path: Path, precision: Precision = Precision.FP32, *, type_ids: bool = False
) -> OpenVinoEngine:
    return OpenVinoEngine(path, collate(type_ids=type_ids), precision=precision)


@pytest.fixture(scope="module")
def model(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(run, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(model: Path) -> OpenVinoEngine:
    return opened(model)


def test_float32_is_not_computed_as_bf16(
    run: Path, engine: OpenVinoEngine, encodings: list[Encoding]
) -> None:
    with OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate()) as other:
        expected_NC = other.infer(encodings).values
    np.testing.assert_allclose(engine.infer(encodings).values, expected_NC, atol=1e-5)


def test_int8_uses_float32_for_other_operations_by_default(
    model: Path, engine: OpenVinoEngine, encodings: list[Encoding]
) -> None:
    with opened(model, Precision.INT8) as other:
        np.testing.assert_array_equal(other.infer(encodings).values, engine.infer(encodings).values)


def saying(model: Path, hint: str, folder: Path) -> Path:
    """The same model with a stored precision."""
    marked, path = shared_core().read_model(model), folder / f"{hint}.xml"
    marked.set_rt_info(hint, PRECISION_PATH)
    ov.save_model(marked, path, compress_to_fp16=False)
    return path


@pytest.mark.skipif(not computes_bf16(), reason="this processor has no bf16")
def test_int8_uses_the_stored_precision_for_other_operations(
    model: Path, tmp_path: Path, encodings: list[Encoding]
) -> None:
    for precision, hint in ((Precision.BF16, "bf16"), (Precision.FP32, "f32")):
        marked = saying(model, hint, tmp_path)
        with opened(marked, Precision.INT8) as rest, opened(model, precision) as whole:
            np.testing.assert_array_equal(
                rest.infer(encodings).values, whole.infer(encodings).values
            )


@pytest.mark.parametrize(
    ("found", "hint"), [(["FP32", "INT8"], "f32"), (["FP32", "BF16", "INT8"], "bf16")]
)
def test_the_rest_of_int8_is_float32_where_the_processor_has_no_bf16(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[str], hint: str
) -> None:
    marked = shared_core().read_model(saying(model, "bf16", tmp_path))
    monkeypatch.setattr(ov.Core, "get_property", lambda *_: found)
    assert precision_hint(marked, Precision.INT8) == hint


@pytest.mark.skipif(not computes_bf16(), reason="this processor has no bf16")
def test_bf16_is_computed_as_bf16(
    model: Path, engine: OpenVinoEngine, encodings: list[Encoding]
) -> None:
    with opened(model, Precision.BF16) as other:
        apart = np.abs(other.infer(encodings).values - engine.infer(encodings).values).max()
    assert 1e-4 < apart < 0.1


def test_bf16_on_a_processor_without_it_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ov.Core, "get_property", lambda *_: ["FP32", "INT8"])
    with pytest.raises(
        MissingDependencyError, match=r"needs bf16, but this processor supports FP32"
    ):
        opened(model, Precision.BF16)
    opened(model).close()


@pytest.mark.parametrize("spoilt", ["model.xml", "model.bin"])
def test_an_invalid_file_is_reported_in_one_line(model: Path, tmp_path: Path, spoilt: str) -> None:
    copy = Path(shutil.copytree(model.parent, tmp_path / "copy"))
    (copy / spoilt).write_bytes(b"not a model")
    with pytest.raises(
        RunFolderError, match=r"model\.xml is not a usable OpenVINO model: "
    ) as caught:
        opened(copy / "model.xml")
    assert "Exception from" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_packed_rows_have_few_widths(engine: OpenVinoEngine, encodings: list[Encoding]) -> None:
    packed = replace(engine.collate, layout=Layout.PACKED)
    widths = {
        feed.arrays["input_ids"].shape[1]
        for count in range(1, len(encodings) + 1)
        for feed in packed.feeds(encodings[:count])
    }
    assert len(widths) > 1
    assert {width % ROW_STEP for width in widths} == {0}


def test_threads_follow_the_limit_of_the_container(engine: OpenVinoEngine) -> None:
    compiled = engine._request.get_compiled_model()  # noqa: SLF001
    assert compiled.get_property("INFERENCE_NUM_THREADS") == cpu_limit()


# The end of OpenVINO's runtime in another thread than its start takes away the memory that the
# first thread handles signals on: the next signal kills the process.
SIGNALLED = """
import os, signal, sys, threading
from pathlib import Path
from pipework.run_folder.engine_record import Layout, Precision
from pipework.text.padding import Padding
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.openvino import OpenVinoEngine
from pipework.machine import NICE

signal.signal(signal.SIGUSR1, lambda *_: print("alive"))
collate = Collate(
    layout=Layout.PADDED, padding=Padding(pad_id=0, type_ids=False), spans=False
)
engine = OpenVinoEngine(Path(sys.argv[1]), collate, precision=Precision.FP32)
closing = threading.Thread(target=engine.close)
closing.start()
closing.join()
os.kill(os.getpid(), signal.SIGUSR1)
"""


def ran(script: str, model: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-c", script, str(model)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    return done.returncode, done.stdout, done.stderr


def test_a_process_that_closed_an_engine_elsewhere_outlives_a_signal(model: Path) -> None:
    assert ran(SIGNALLED, model) == (0, "alive\n", "")


# In a process of its own: the runtime gives threads of a closed engine to the next one.
STEPPING_BACK = """
import os, sys
from pathlib import Path
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines.openvino import OpenVinoEngine
from tests.serve.engines.test_openvino import collate

before = {one.name for one in Path("/proc/self/task").iterdir()}
with OpenVinoEngine(Path(sys.argv[1]), collate(), precision=Precision.FP32, threads=2):
    started = {one.name for one in Path("/proc/self/task").iterdir()} - before
    print(*{os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in started})
"""


def test_threads_that_compute_step_back(model: Path) -> None:
    assert ran(STEPPING_BACK, model) == (0, f"{NICE}\n", "")


def print_telemetry_modules() -> None:
    from pipework.export.convert import onnx2openvino  # noqa: F401, PLC0415  (in the fork only)

    loaded = [name for name, module in sys.modules.items() if module is not None]
    print("openvino" in loaded, [name for name in loaded if "openvino_telemetry" in name])  # noqa: T201


def test_no_usage_data_are_sent_to_the_maker_of_openvino() -> None:
    with ForkedProcess(print_telemetry_modules) as process:
        done = process.finish()
    assert done.stdout == "True []\n", done
