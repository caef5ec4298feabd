"""A target becomes a result, whatever it is; a wrong one is one line."""

from datetime import UTC, datetime

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework.benchmarks import run
from pipework.benchmarks.plan import Plan
from pipework.benchmarks.run import bench
from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import InputError, PipeError, RunFolderError
from pipework.progress import Silent
from pipework.run_folder.engine_record import (
    EngineFormat,
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
    Reading,
    write_manifest,
)
from pipework.run_folder.task import Metric, Task, TaskKind

READING = Reading(text=0, text_pair=None, label=1, format="tsv", header=False)
QUICK = Plan(concurrencies=(1, 2), duration_s=0.2)
TOLERANCE = Tolerance(max_abs=1e-4, spread=1e-4, flips_outside=0, score_drop=0)


class Instant:
    """An engine that answers at once."""

    def infer(self, encodings):
        return np.zeros((len(encodings), 2), np.float32)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Marked(Instant):
    """An engine that wants the places of two entities."""

    def infer(self, encodings):
        assert all(one.entity_spans is not None for one in encodings)
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
            format=EngineFormat.ONNX,
            precision=Precision.FP32,
            layout=Layout.PADDED,
            files=(),
            opset=17,
            built_with={},
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
        task=Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY),
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


def test_a_url_gives_a_level_for_each_number_of_clients(serve):
    server = serve(delay_s=0.01)
    found = bench(server.url + "/", QUICK, Silent())
    assert [level.concurrency for level in found.levels] == [1, 2]
    assert found.model == "fake"
    assert found.target == server.url
    assert found.offline == ()
    words = ("pipe", "bench", server.url, "--concurrency", "1,2", "--seconds", "0.2")
    assert found.command == words
    assert len(server.bodies[0]["texts"]) == 1


def test_a_password_in_the_url_is_used_but_not_stored(serve):
    url = serve().url.replace("//", "//me:secret@")
    found = bench(url, QUICK, Silent())
    assert "secret" not in found.model_dump_json()
    assert found.levels[0].requests > 0


def test_a_run_folder_gives_tokenizing_and_each_engine_at_each_batch(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", engines=("onnx-fp32", "onnx-int8"))
    asked = []
    monkeypatch.setattr(run, "open_proven", lambda *words: asked.append(words) or Instant())
    found = bench(str(folder), QUICK, Silent())
    stages = [(level.stage, level.batch) for level in found.offline]
    names = ("tokenizing", "onnx-fp32", "onnx-int8")
    assert stages == [(name, batch) for name in names for batch in (1, 8, 32)]
    assert [(words[0], words[2]) for words in asked] == [
        (folder, "onnx-fp32"),
        (folder, "onnx-int8"),
    ]
    assert (found.target, found.model, found.levels) == ("run", "headlines", ())
    tokens = found.workload.mean_tokens
    assert 2 < tokens <= 16  # the model's limit
    for level in found.offline:
        assert level.tokens_per_s == pytest.approx(level.texts_per_s * tokens, rel=1e-3)
    assert str(tmp_path) not in found.model_dump_json()


def test_a_run_folder_is_measured_with_the_file_and_batch_asked_for(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run")
    monkeypatch.setattr(run, "open_proven", lambda *_: Instant())
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\n")
    source = Source(path=path, columns=Columns(text=0, label=None))
    found = bench(str(folder), Plan(source=source, batch=2, duration_s=0.1), Silent())
    assert {level.batch for level in found.offline} == {2}
    assert (found.workload.source, found.workload.texts) == ("rows.txt", 2)
    words = " ".join(found.command)
    assert words == "pipe bench run --file rows.txt --columns text=0 --batch 2 --seconds 0.1"


def test_a_model_of_pairs_is_measured_with_pairs(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", fields=("text", "text_pair"))
    monkeypatch.setattr(run, "open_proven", lambda *_: Instant())
    assert bench(str(folder), Plan(batch=1, duration_s=0.1), Silent()).workload.pair


def test_a_model_of_two_entities_is_measured_with_marked_texts(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", fields=("text", "entities"))
    monkeypatch.setattr(run, "open_proven", lambda *_: Marked())
    found = bench(str(folder), Plan(batch=1, duration_s=0.1), Silent())
    assert [level.stage for level in found.offline] == ["tokenizing", "onnx-fp32"]
    path = tmp_path / "rows.txt"
    path.write_text("<e1>one</e1> and <e2>two</e2>\nneither\n")
    source = Source(path=path, columns=Columns(text=0, label=None))
    with pytest.raises(InputError, match=r"text \d: expected <e1> once"):
        bench(str(folder), Plan(source=source, batch=1, duration_s=0.1), Silent())


def test_a_run_folder_without_an_engine_says_how_to_make_one(tmp_path):
    folder = run_folder(tmp_path / "run", engines=())
    with pytest.raises(RunFolderError, match="no proven engine") as caught:
        bench(str(folder), QUICK, Silent())
    assert "pipe export" in caught.value.hint


def test_what_is_neither_is_named(tmp_path):
    with pytest.raises(PipeError, match="is not a folder"):
        bench(str(tmp_path / "absent"), QUICK, Silent())
