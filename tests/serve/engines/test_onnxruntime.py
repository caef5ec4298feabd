import os
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from pipework.data.examples import Example
from pipework.errors import MissingDependencyError, RunFolderError
from pipework.machine import NICE, cpu_limit
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines import onnxruntime as module
from pipework.serve.engines.cuda import Gpu, NoGpuError
from pipework.serve.engines.onnxruntime import CUDA, OnnxRuntime, OnnxRuntimeEngine, _check_provider
from pipework.serve.engines.runtime import Usability
from pipework.serve.engines.tensorrt_packages import gpu_or_none
from pipework.text.encoding import Encoding
from tests.serve.conftest import encoded
from tests.serve.engines.conftest import collate


@pytest.fixture
def engine(run: Path) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate())


@pytest.fixture
def marked(entity_run: Path) -> list[Encoding]:
    places = [((0, 4), (5, 9)), ((5, 9), (0, 4))]
    examples = [Example(text="rain goal " + "wind " * n, entities=e) for n, e in enumerate(places)]
    return encoded(entity_run, examples)


def test_a_graph_that_only_reads_the_marks_is_not_given_the_places(
    engine: OnnxRuntimeEngine, marked: list[Encoding]
) -> None:
    assert engine.infer(marked).values.shape == (2, 3)


def test_an_invalid_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(RunFolderError, match=r"model\.onnx is not a usable ONNX graph"):
        OnnxRuntimeEngine(path, collate())


@pytest.mark.parametrize(
    ("quota", "expected"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_threads_follow_the_quota_of_the_container(
    tmp_path: Path, quota: str, expected: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    absent = cpu_limit(tmp_path / "absent")
    assert cpu_limit(tmp_path / "cpu.max") == (expected or absent)
    assert absent >= 1


def test_a_fallback_from_the_gpu_to_the_cpu_is_an_error() -> None:
    _check_provider([CUDA, "CPUExecutionProvider"], CUDA)
    with pytest.raises(
        MissingDependencyError, match="uses CPUExecutionProvider instead of CUDAExecution"
    ):
        _check_provider(["CPUExecutionProvider"], CUDA)


@pytest.mark.usefixtures("gpu")
def test_on_cuda_float32_is_not_computed_as_tf32(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def session(*_: object, **given: object) -> None:
        asked.append(given)
        message = "seen"
        raise RuntimeError(message)

    monkeypatch.setattr(module, "cuda_gpu", lambda: Gpu(name="Fake L4", capability=89))
    monkeypatch.setattr(module, "load_cuda_libraries", tuple)
    monkeypatch.setattr(ort, "InferenceSession", session)
    with pytest.raises(RunFolderError, match="seen"):
        OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate())
    options = {
        "use_tf32": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "user_compute_stream": "7",
    }
    assert asked == [{"providers": [CUDA], "provider_options": [options], "enable_fallback": 0}]


def test_on_a_gpu_fp16_is_worth_building_and_int8_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cuda_gpu", lambda: Gpu(name="Fake L4", capability=89))
    assert OnnxRuntime().local_precisions() == (Precision.FP32, Precision.FP16)
    with monkeypatch.context() as patches:
        patches.setattr(ort, "get_available_providers", lambda: [CUDA])
        patches.setattr(module, "load_cuda_libraries", tuple)
        usable = [OnnxRuntime().examine(precision)[0] for precision in OnnxRuntime.precisions]
    assert usable == [Usability.YES, Usability.YES, Usability.SLOW]  # fp32, fp16, int8
    monkeypatch.setattr(module, "cuda_gpu", lambda: None)
    assert OnnxRuntime().local_precisions() == (Precision.FP32, Precision.INT8)


@pytest.mark.usefixtures("gpu")
def test_a_failure_of_cuda_is_one_line_and_not_on_stdout(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create = ort.InferenceSession._create_inference_session  # noqa: SLF001

    def fail_on_cuda(self: ort.InferenceSession, providers: list[str], *given: object) -> None:
        if CUDA in providers:
            message = "CUDA failure 2: out of memory ; GPU=0\nmore"
            raise RuntimeError(message)
        create(self, providers, *given)

    monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", fail_on_cuda)
    monkeypatch.setattr(module, "cuda_gpu", lambda: Gpu(name="Fake L4", capability=89))
    monkeypatch.setattr(module, "load_cuda_libraries", tuple)
    expected = "cannot compute on the GPU: CUDA failure 2: out of memory ; GPU=0$"
    with pytest.raises(MissingDependencyError, match=expected) as caught:
        OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate())
    assert "check it with `nvidia-smi`" in str(caught.value.hint)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("devices", "level"), [(None, "WARNING"), ("0", "WARNING"), ("", "INFO")])
def test_a_package_with_cuda_that_computes_on_the_cpu_warns_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    devices: str | None,
    level: str,
) -> None:
    def find_gpu() -> Gpu:
        message = "there is no NVIDIA GPU here"
        raise NoGpuError(message)

    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(module, "find_gpu", find_gpu)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    module.report_cpu.cache_clear()
    caplog.set_level("INFO")
    assert module.cuda_gpu() is module.cuda_gpu() is None
    assert [(one.levelname, one.message) for one in caplog.records] == [
        (
            level,
            "onnxruntime supports CUDA, but computes on the CPU: there is no NVIDIA GPU here",
        )
    ]


def test_missing_libraries_of_cuda_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cuda_gpu", lambda: Gpu(name="Fake L4", capability=89))
    monkeypatch.setattr(module, "load_cuda_libraries", lambda: ("libcudnn.so.9", "libcufft.so.12"))
    with pytest.raises(
        MissingDependencyError, match=r"onnxruntime needs libcudnn\.so\.9, libcufft\.so\.12"
    ) as caught:
        OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate())
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("pip install 'pipework[cuda]'")


@pytest.mark.gpu
def test_with_a_gpu_and_a_package_that_can_cuda_answers(
    run: Path, encodings: list[Encoding]
) -> None:
    gpu = gpu_or_none()
    if gpu is None or CUDA not in ort.get_available_providers():
        pytest.skip("needs a CUDA device and onnxruntime-gpu")
    with OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate()) as engine:
        assert engine.processor == gpu.name
        assert engine.infer(encodings).values.argmax(axis=1).tolist() == [0, 1, 2, 0, 0, 1]


def test_threads_that_compute_step_back(run: Path) -> None:
    before = {one.name for one in Path("/proc/self/task").iterdir()}
    with OnnxRuntimeEngine(run / "engines/onnx/model.onnx", collate(), threads=2):
        started = {one.name for one in Path("/proc/self/task").iterdir()} - before
        found = {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in started}
    assert found == {NICE}


def test_importing_the_runtime_writes_no_device_id_and_sends_no_events(tmp_path):
    code = "import pipework, onnxruntime, time; time.sleep(0.5)"  # it writes in a thread
    variables = {**os.environ, "HOME": str(tmp_path)}
    variables.pop("ORT_DISABLE_TELEMETRY", None)
    variables.pop("XDG_CACHE_HOME", None)
    subprocess.run([sys.executable, "-P", "-c", code], env=variables, check=True)
    assert list(tmp_path.rglob("*")) == []
