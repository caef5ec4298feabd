"""URLs and run folders are measured; invalid targets are reported."""

from datetime import UTC, datetime

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework.benchmarks import run
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.run import bench
from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import InputError
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import (
    EngineBuild,
    EngineRecord,
    Layout,
    Parity,
    Precision,
    Tolerance,
)
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import (
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    ReadOptions,
    write_manifest,
)
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask

READING = ReadOptions(text=0, text_pair=None, label=1, format="tsv", header=False)
QUICK = BenchPlan(concurrencies=(1, 2), duration_s=0.2)
TOLERANCE = Tolerance(max_abs=1e-4, spread=1e-4, flips_outside=0, score_drop=0)


class InstantEngine:
    """Engine that returns immediately."""

    def infer(self, encodings):
        return Outputs.of(np.zeros((len(encodings), 2), np.float32))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class EntityEngine(InstantEngine):
    """Engine that requires the spans of two entities."""

    def infer(self, encodings):
        assert all(encoding.entity_spans is not None for encoding in encodings)
        return super().infer(encodings)


def parity():
    return Parity(
        reference="checkpoint",
        rows=1,
        shapes=((1, 1),),
        max_abs=0,
        mean_abs=0,
        max_rel=0,
        max_kl=0,
        spread=0,
        argmax_agreement=1,
        flips=0,
        error_bound=0,
        flips_outside=0,
        max_change=0,
        metric=Metric.ACCURACY,
        scores=None,
        processor="any",
        tolerance=TOLERANCE,
        passed=True,
    )


def run_folder(path, *, fields=("text",), engines=("onnx-fp32",)):
    path.mkdir()
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "$": 1, "#": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    records = tuple(
        EngineRecord(
            name=name,
            format="onnx",
            precision=Precision.FP32,
            layout=Layout.PADDED,
            files=(),
            built=EngineBuild(opset=17, built_with={}),
            parity=parity(),
            tolerance=TOLERANCE,
        )
        for name in engines
    )
    manifest = Manifest(
        identity=Identity(
            name="headlines",
            created_at=datetime.now(UTC),
            pipework="0",
            git_commit=None,
            seed=0,
        ),
        task=SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY),
        input=Input(
            fields=fields,
            tokenizer=record_file(path, path / "tokenizer.json"),
            max_length=16,
            pad_id=0,
            type_ids=True,
        ),
        model=Model(
            family="bert", head="linear", base=None, parameters=1, dtype="float32", checkpoint=()
        ),
        data=Data(reading=READING, splits={}, findings=(), metrics={}),
        engines=records,
    )
    write_manifest(path, manifest)
    return path


def test_a_url_is_measured_at_each_number_of_clients(serve):
    server = serve(delay_s=0.01)
    result = bench(server.url + "/", QUICK, NullProgress())
    assert [level.concurrency for level in result.levels] == [1, 2]
    assert result.model == "fake"
    assert result.target == server.url
    assert result.offline == ()
    assert len(server.bodies[0]["texts"]) == 1


def test_a_password_in_the_url_is_used_but_not_stored(serve):
    url = serve().url.replace("//", "//me:secret@")
    result = bench(url, QUICK, NullProgress())
    assert "secret" not in result.model_dump_json()
    assert result.levels[0].requests > 0


def test_a_run_folder_is_measured_with_each_stage_and_batch(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", engines=("onnx-fp32", "onnx-int8"))
    opened = []
    monkeypatch.setattr(
        run, "open_proven", lambda *arguments: opened.append(arguments) or InstantEngine()
    )
    result = bench(str(folder), QUICK, NullProgress())
    stages = [(level.stage, level.batch) for level in result.offline]
    names = ("tokenizing", "onnx-fp32", "onnx-int8")
    assert stages == [(name, batch) for name in names for batch in (1, 8, 32)]
    assert [(arguments[0], arguments[2]) for arguments in opened] == [
        (folder, "onnx-fp32"),
        (folder, "onnx-int8"),
    ]
    assert (result.target, result.model, result.levels) == ("run", "headlines", ())
    tokens = result.workload.mean_tokens
    assert 2 < tokens <= 16  # the model's limit
    for level in result.offline:
        assert level.tokens_per_s == pytest.approx(level.texts_per_s * tokens, rel=1e-3)
    assert str(tmp_path) not in result.model_dump_json()


def test_a_run_folder_is_measured_with_the_given_file_and_batch(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run")
    monkeypatch.setattr(run, "open_proven", lambda *_: InstantEngine())
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\n")
    source = Source(path=path, columns=Columns(text=0, label=None))
    result = bench(str(folder), BenchPlan(source=source, batch=2, duration_s=0.1), NullProgress())
    assert {level.batch for level in result.offline} == {2}
    assert (result.workload.source, result.workload.texts) == ("rows.txt", 2)


def test_a_model_of_pairs_is_measured_with_pairs(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", fields=("text", "text_pair"))
    monkeypatch.setattr(run, "open_proven", lambda *_: InstantEngine())
    assert bench(str(folder), BenchPlan(batch=1, duration_s=0.1), NullProgress()).workload.pair


def test_a_model_of_two_entities_is_measured_with_marked_texts(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", fields=("text", "entities"))
    monkeypatch.setattr(run, "open_proven", lambda *_: EntityEngine())
    result = bench(str(folder), BenchPlan(batch=1, duration_s=0.1), NullProgress())
    assert [level.stage for level in result.offline] == ["tokenizing", "onnx-fp32"]
    path = tmp_path / "rows.txt"
    path.write_text("<e1>one</e1> and <e2>two</e2>\nneither\n")
    source = Source(path=path, columns=Columns(text=0, label=None))
    with pytest.raises(InputError, match=r"text \d: expected <e1> once"):
        bench(str(folder), BenchPlan(source=source, batch=1, duration_s=0.1), NullProgress())
