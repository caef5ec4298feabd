"""Run folders built without torch: a small ONNX graph, a tokenizer and a manifest."""

import functools
import gc
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from pipework.data.examples import Example
from pipework.machine import processor
from pipework.run_folder.engine_record import EngineBuild, EngineRecord, Layout, Precision
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import (
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    read_manifest,
    write_manifest,
)
from pipework.run_folder.read_options import ReadOptions
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines import open_engine
from pipework.serve.engines.runtimes import runtime_of
from pipework.serve.models import open_models
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.windows import Join, Windows
from pipework.text.encoding import Encoding, TextEncoder
from tests.checked_manifest import TOLERANCE, as_checked, parity
from tests.commands import ForkedProcess
from tests.serve.servers import Infer, run_server, wrap_engines

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *("rain", "sun", "wind", "goal", "team", "match", "bank", "rate", "stock"),
    *("$", "#"),  # entity markers; they have no class in this graph
]
MEANING = range(4, 13)
LABELS = ("weather", "sport", "money")
GRAPH = "engines/onnx/model.onnx"  # of a run folder
TASKS = {
    "single_label": SingleLabelTask(labels=LABELS, metric=Metric.ACCURACY),
    "multi_label": MultiLabelTask(
        labels=LABELS, metric=Metric.MICRO_F1, thresholds=(0.75, 0.75, 0.25)
    ),
    "regression": RegressionTask(labels=("score",), metric=Metric.PEARSON),
}
WIDTH = 16
SLOW_WIDTH = 256

MakeRun = Callable[..., Path]

# Texts of every label and of several lengths.
TEXTS = ["rain", "goal team match", "bank rate stock " * 8, "", "sun wind " * 3, "goal"]

# A server in a process that has imported nothing else.
RUNNER = """
import sys
from pathlib import Path
from tests.serve.servers import run_server
run_server(Path(sys.argv[1]), 0, 0, sys.argv[2:])
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server in its own process."""

    process: ForkedProcess | subprocess.Popen[str]
    url: str
    grpc: str

    def proc(self, name: str) -> str:
        """Return the content of a file of /proc/PID."""
        return Path(f"/proc/{self.process.pid}/{name}").read_text()

    def memory(self, name: str = "VmRSS") -> int:
        """Return the resident memory, or another value of /proc/PID/status, in bytes."""
        (line,) = [line for line in self.proc("status").splitlines() if line.startswith(name)]
        return int(line.split()[1]) * 1024

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


@pytest.fixture
def gc_disabled() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # so that collections need not search the objects of other tests
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def launch() -> Iterator[Callable[..., ForkedProcess]]:
    """A function that starts a server for a run folder in a fork.

    Arguments: run, port=0, grpc_port=0, settings=(), before=None, workers=1, and environment
    variables.
    `before` is called in the fork before the server.
    """
    with ExitStack() as stack:

        def start(
            run: Path,
            port: int = 0,
            grpc_port: int = 0,
            settings: Sequence[str] = (),
            before: Callable[[], object] | None = None,
            workers: int = 1,
            **environment: str,
        ) -> ForkedProcess:
            arguments = (run, port, grpc_port, settings, before, workers)
            return stack.enter_context(ForkedProcess(run_server, *arguments, **environment))

        yield start


@pytest.fixture(scope="session")
def start_server(launch: Callable[..., ForkedProcess]) -> Callable[..., Server]:
    """A function that starts a server and waits until it is ready.

    Arguments: run, settings, workers=1, and environment variables.
    """

    def start(run: Path, *settings: str, workers: int = 1, **environment: str) -> Server:
        process = launch(run, settings=settings, workers=workers, **environment)
        addresses = process.first_line().split()  # URL and gRPC on HOST:PORT
        assert addresses, process.finish()
        return Server(process=process, url=addresses[0], grpc=addresses[-1])

    return start


@pytest.fixture(scope="session")
def server(run: Path) -> Iterator[Server]:
    """A running server in a process that has imported nothing else. Tests must not stop it."""
    command, root = [sys.executable, "-c", RUNNER, run], Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        url, *_, grpc = process.stdout.readline().split()
        yield Server(process=process, url=url, grpc=grpc)
        process.kill()


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """A function that builds a run folder.

    Arguments: pair=False, entities=False, kind=SINGLE_LABEL, layers=0, passed=True.
    """
    return functools.partial(build_run, tmp_path_factory)


@pytest.fixture(scope="session")
def run(make_run: MakeRun) -> Path:
    """A run folder. Tests must not change it."""
    return make_run()


@pytest.fixture(scope="session")
def pair_run(make_run: MakeRun) -> Path:
    return make_run(pair=True)


@pytest.fixture(scope="session")
def entity_run(make_run: MakeRun) -> Path:
    """A model of texts with two entities. Only the second determines the label."""
    return make_run(entities=True)


@pytest.fixture(scope="session")
def multi_run(make_run: MakeRun) -> Path:
    return make_run(kind="multi_label")


@pytest.fixture(scope="session")
def regression_run(make_run: MakeRun) -> Path:
    """A regression model: the weather logit of a text."""
    return make_run(kind="regression")


@pytest.fixture(scope="session")
def slow_run(make_run: MakeRun) -> Path:
    """A model that needs milliseconds per text, so that requests queue up."""
    return make_run(layers=60)


@pytest.fixture(scope="session")
def kept_run(make_run: MakeRun) -> Path:
    """A run folder with reference rows for its engine. Tests must not change it."""
    run = make_run()
    keep_rows(run)
    return run


@pytest.fixture
def shelf(kept_run: Path, tmp_path: Path) -> "Shelf":
    """An empty model repository."""
    folder = tmp_path / "models"
    folder.mkdir()
    return Shelf(folder, kept_run)


@pytest.fixture
def wrap(monkeypatch: pytest.MonkeyPatch) -> Callable[[Infer], None]:
    """Wrap the engines of this process until the end of the test."""
    for name in ("open_first", "open_proven"):
        monkeypatch.setattr(open_models, name, getattr(open_models, name))
    return wrap_engines


class Shelf:
    """A model repository, to which versions are added as `pipe export` adds them.

    The labels of version 1 are weather, sport and money; those of version 2 weather-2, ...
    """

    def __init__(self, folder: Path, run: Path) -> None:
        self.folder = folder
        self._run = run

    def add(
        self, version: int = 1, name: str = "topics", *, wrong: bool = False, policy: str = ""
    ) -> Path:
        """Add a version; `wrong`: its outputs differ from its reference rows."""
        partial = self.folder.parent / "partial"
        run = Path(shutil.copytree(self._run, partial / str(version)))
        manifest = read_manifest(run)
        if version > 1:
            labels = tuple(f"{label}-{version}" for label in LABELS)
            task = manifest.task.model_copy(update={"labels": labels})
            write_manifest(run, as_checked(manifest.model_copy(update={"task": task})))
        if wrong:
            keep_rows(run, wrong=0.5)
        model = self.folder / name
        if policy or not model.exists():
            self.configure(policy, name)
        run.rename(model / str(version))
        return model / str(version)

    def configure(self, text: str, name: str = "topics") -> None:
        """Write the config of a model, with the Python backend unless `text` has a backend."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        backend = "" if "backend" in text else 'backend: "python"'
        (folder / "config.pbtxt").write_text(f'name: "{name}" {backend} {text}')

    def mend(self, version: int, name: str = "topics") -> None:
        """Update the reference rows of a version to its outputs."""
        keep_rows(self.folder / name / str(version))


def encoded(run: Path, examples: Sequence[Example], *, type_ids: bool = False) -> list[Encoding]:
    encoder = TextEncoder.open(run / "tokenizer.json", max_length=32, type_ids=type_ids)
    return encoder.encode(examples)


def reference_rows(run: Path, repetitions: int = 3) -> ReferenceRows:
    """Return reference rows. Their logits come from the engine instead of a checkpoint."""
    manifest = read_manifest(run)
    encodings = encoded(run, [Example(text=text) for text in TEXTS * repetitions])
    with open_engine(run / GRAPH, manifest.engines[0], manifest) as engine:
        return ReferenceRows(encodings=encodings, outputs=engine.infer(encodings))


def keep_rows(run: Path, *, wrong: float = 0.0) -> None:
    """Store reference rows, with which an engine can be verified again."""
    folder = run / "engines" / "onnx"
    rows, manifest = reference_rows(run), read_manifest(run)
    rows.outputs.values[:] += wrong
    (record,) = manifest.engines
    partial = folder / "rows.partial"
    rows.write(partial)
    partial.replace(folder / "rows.npz")
    files = tuple(record_file(run, folder / name) for name in ("model.onnx", "rows.npz"))
    record = record.model_copy(update={"files": files})
    write_manifest(run, manifest.model_copy(update={"engines": (record,)}))


def with_windows(run: Path, folder: Path, join: Join = Join.MEAN, stride: int = 2) -> Path:
    """Return a copy of a run that reads windows."""
    shutil.copytree(run, folder)
    manifest = read_manifest(folder)
    windows = Windows(stride=stride, join=join)
    write_manifest(folder, manifest.model_copy(update={"windows": windows}))
    return folder


def build_run(
    folders: pytest.TempPathFactory,
    *,
    pair: bool = False,
    entities: bool = False,
    kind: str = "single_label",
    layers: int = 0,
    passed: bool = True,
) -> Path:
    run = folders.mktemp("run")
    (run / "engines" / "onnx").mkdir(parents=True)
    tokenizer, graph = run / "tokenizer.json", run / "engines" / "onnx" / "model.onnx"
    build_tokenizer().save(str(tokenizer))
    task = TASKS[kind]
    build_graph(graph, type_ids=pair, spans=entities, classes=len(task.labels), layers=layers)
    fields = ("text", *["text_pair"] * pair, *["entities"] * entities)
    manifest = Manifest(
        identity=Identity(
            name="topics",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            pipework="0",
            git_commit=None,
            seed=1,
        ),
        task=task,
        input=Input(
            fields=fields,
            tokenizer=record_file(run, tokenizer),
            max_length=32,
            pad_id=0,
            type_ids=pair,
        ),
        model=Model(
            family="bag",
            head="entity" if entities else "linear",
            base=None,
            parameters=1,
            dtype="float32",
            checkpoint=(),
        ),
        data=Data(
            reading=ReadOptions(
                text=0, text_pair=1 if pair else None, label=None, format="tsv", header=False
            ),
            splits={},
            findings=(),
            metrics={},
        ),
        engines=(
            EngineRecord(
                name="onnx",
                format="onnx",
                precision=Precision.FP32,
                layout=Layout.PADDED,
                files=(record_file(run, graph),),
                built=EngineBuild(opset=17, built_with={}),
                parity=parity(
                    processor=processor(),
                    runtime=runtime_of("onnx").version(),
                    threads=tuple(range(1, 257)),
                    passed=passed,
                ),
                tolerance=TOLERANCE,
            ),
        ),
    )
    write_manifest(run, as_checked(manifest))
    return run


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(
        WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def build_graph(
    path: Path,
    *,
    type_ids: bool = False,
    spans: bool = False,
    classes: int = len(LABELS),
    layers: int = 0,
) -> None:
    """Build a graph: masked mean of word vectors, then one linear layer.

    Words 4..6 are weather, 7..9 sport, 10..12 money. `layers` adds identity matrix products, which
    only take time.
    """
    width = SLOW_WIDTH if layers else WIDTH
    words = np.zeros((len(WORDS), width), np.float32)
    for word in MEANING:
        words[word, (word - 4) // 3] = 4 + word / 10
    arrays = {
        "words": words,
        "classes": np.eye(width, classes, dtype=np.float32),
        **{f"axis_{axis}": np.array([axis]) for axis in range(1, 5)},
        **{f"number_{number}": np.array(number) for number in range(2)},
    }
    if layers:
        arrays["same"] = np.eye(width, dtype=np.float32)
    if type_ids:  # only the second text determines the label
        arrays["kinds"] = np.array([[0], [1]], np.float32)
    node = helper.make_node
    nodes = [node("Gather", ["words", "input_ids"], ["hidden_0"])]
    nodes += [
        node("MatMul", [f"hidden_{layer}", "same"], [f"hidden_{layer + 1}"])
        for layer in range(layers)
    ]
    last = f"hidden_{layers}"
    names = ["input_ids", "attention_mask"]
    if type_ids:
        names.append("token_type_ids")
        nodes.append(node("Gather", ["kinds", "token_type_ids"], ["kind"]))
        nodes.append(node("Mul", [last, "kind"], ["second_only"]))
        last = "second_only"
    if spans:  # only the second entity determines the label
        names.append("entity_spans")
        nodes += [
            node("Shape", ["input_ids"], ["shape"]),
            node("Gather", ["shape", "number_1"], ["length"]),
            node("Range", ["number_0", "length", "number_1"], ["places_T"]),
            node("Slice", ["entity_spans", "axis_2", "axis_3", "axis_1"], ["start_B1"]),
            node("Slice", ["entity_spans", "axis_3", "axis_4", "axis_1"], ["end_B1"]),
            node("GreaterOrEqual", ["places_T", "start_B1"], ["after_BT"]),
            node("Less", ["places_T", "end_B1"], ["before_BT"]),
            node("And", ["after_BT", "before_BT"], ["inside_BT"]),
            node("Cast", ["inside_BT"], ["counts_BT"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["counts_BT", "axis_2"], ["counts_BT1"]),
            node("Mul", [last, "counts_BT1"], ["entity_only"]),
        ]
        last = "entity_only"
    nodes += [
        node("Cast", ["attention_mask"], ["mask_BT"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask_BT", "axis_2"], ["mask_BT1"]),
        node("Mul", [last, "mask_BT1"], ["masked"]),
        node("ReduceSum", ["masked", "axis_1"], ["sum"], keepdims=0),
        node("ReduceSum", ["mask_BT1", "axis_1"], ["count"], keepdims=0),
        node("Div", ["sum", "count"], ["mean"]),
        node("MatMul", ["mean", "classes"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bag",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [None, None]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, classes])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
