"""A server reads the whole of longer texts, in windows."""

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipework import Client
from pipework.data.examples import Example
from pipework.errors import ConfigError, RunFolderError
from pipework.predict.text_model import EngineModel
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import Engine
from pipework.serve.bulk.job import BulkOptions, score_files
from pipework.serve.engines import open_proven
from pipework.serve.models.open_models import open_predictor
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import SingleLabel
from pipework.tasks.windows import Join
from pipework.text.encoding import Encoding
from pipework.wire.text_tensors import InputTexts
from tests.serve.conftest import Server, with_windows
from tests.serve.servers import Infer

# The graph reads 32 tokens. The words of a text have one label, or two at its ends.
TEXTS = ["rain", "goal " * 100, "", "bank rate " * 20 + "sun " * 60, "team " * 31, "wind " * 30]
COUNTS = (1, 4, 1, 4, 2, 1)


@pytest.fixture(params=["run", "multi_run", "regression_run"])
def windowed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return with_windows(request.getfixturevalue(request.param), tmp_path / "windowed")


def test_a_server_answers_as_pipe_predict(windowed: Path) -> None:
    examples = [Example(text=text) for text in TEXTS]
    manifest = read_manifest(windowed)
    with EngineModel.open(windowed, manifest, open_proven(windowed, manifest)) as model:
        expected = model.predict(examples)
    with open_predictor(windowed) as predictor:
        found = asyncio.run(predictor.predict(examples))
        alone = [asyncio.run(predictor.predict([example]))[0] for example in examples]
        totals = predictor.scheduler.statistics.totals
        assert (totals.texts, totals.truncated) == (2 * len(TEXTS), 0)
        sent = InputTexts(text=[text.encode() for text in TEXTS])
        tensors = asyncio.run(predictor.answer(sent))
    assert tuple(one.windows for one in found) == COUNTS
    assert len(tensors.outputs.values) == len(TEXTS)
    assert tensors.parameters() == {"windows": ",".join(map(str, COUNTS))}
    assert tensors.rows(1, 3).parameters() == {"windows": "4,1"}
    assert tensors.rows(2, 3).parameters() == {}
    for one, other, third in zip(found, alone, expected, strict=True):
        assert one.text_fields() == other.text_fields() == third.text_fields()
        assert one.windows == other.windows == third.windows


def test_impossible_windows_are_refused_when_a_model_is_opened(
    run: Path, pair_run: Path, tmp_path: Path
) -> None:
    windowed = with_windows(run, tmp_path / "windowed", stride=16)
    with pytest.raises(ConfigError, match=r"expected windows with a stride of at most 15"):
        open_predictor(windowed)
    with pytest.raises(RunFolderError, match="windows are for single texts"):
        with_windows(pair_run, tmp_path / "pairs")


def test_a_model_with_windows_is_another_version(run: Path, tmp_path: Path) -> None:
    runs = [run, *(with_windows(run, tmp_path / join, join) for join in Join)]
    versions = set()
    for folder in runs:
        with open_predictor(folder) as predictor:
            versions.add(predictor.version)
            assert predictor.version.isdecimal()
    assert len(versions) == len(runs)


def test_the_end_of_a_text_counts(run: Path, tmp_path: Path) -> None:
    text = Example(text="bank rate " * 15 + "sun rain wind " * 40)
    with open_predictor(run) as predictor:
        (truncated,) = asyncio.run(predictor.predict([text]))
    with open_predictor(with_windows(run, tmp_path / "windowed")) as predictor:
        (whole,) = asyncio.run(predictor.predict([text]))
    assert isinstance(truncated, SingleLabel)
    assert isinstance(whole, SingleLabel)
    assert (truncated.label, whole.label) == ("money", "weather")
    assert (truncated.truncated, whole.truncated) == (True, False)


def test_windows_of_a_text_are_computed_in_several_batches(
    run: Path, tmp_path: Path, wrap: Callable[[Infer], None]
) -> None:
    sizes: list[int] = []

    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        sizes.append(len(encodings))
        return engine.infer(encodings)

    wrap(infer)
    text = "goal team match " * 2_000
    with open_predictor(with_windows(run, tmp_path / "windowed")) as predictor:
        sizes.clear()
        (found,) = asyncio.run(predictor.predict([Example(text=text)]))
    assert found.windows == sum(sizes) > 200
    assert len(sizes) > 1
    assert isinstance(found, SingleLabel)
    assert found.label == "sport"


def test_the_cache_keeps_the_number_of_windows(run: Path, tmp_path: Path) -> None:
    examples = [Example(text=text) for text in TEXTS]
    with open_predictor(with_windows(run, tmp_path / "windowed")) as predictor:
        predictor.keep_outputs(2**20)
        first = asyncio.run(predictor.predict(examples[:2]))
        again = asyncio.run(predictor.predict(examples))
        assert predictor.load.cache_hits == 2
    assert again[:2] == first
    assert tuple(one.windows for one in again) == COUNTS


def test_a_bulk_job_has_a_column_and_is_continued_with_the_same_windows(
    run: Path, tmp_path: Path
) -> None:
    windowed, texts, out = tmp_path / "windowed", tmp_path / "texts.txt", tmp_path / "job"
    with_windows(run, windowed)
    texts.write_text("".join(f"{text}\n" for text in TEXTS))
    options = BulkOptions(pattern=str(texts), out=str(out))
    score_files(windowed, options, NullProgress())
    (part,) = out.glob("parts/*.parquet")
    counts = pq.read_table(part)["windows"].to_pylist()
    assert counts == [count for text, count in zip(TEXTS, COUNTS, strict=True) if text]
    shutil.rmtree(windowed)
    with_windows(run, windowed, Join.MAX)
    with pytest.raises(ConfigError, match="the job was started with windows"):
        score_files(windowed, options, NullProgress())


def test_an_answer_has_the_number_of_windows(
    run: Path, tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    server = start_server(with_windows(run, tmp_path / "windowed"))
    body = json.dumps({"texts": TEXTS}).encode()
    request = urllib.request.Request(f"{server.url}/v1/predict", body)
    with urllib.request.urlopen(request) as response:
        predictions = json.load(response)["predictions"]
    assert tuple(one["windows"] for one in predictions) == COUNTS
    assert not any(one["truncated"] for one in predictions)
    for url in (server.url, f"grpc://{server.grpc}"):
        with Client(url) as client:
            assert tuple(one.windows for one in client.predict(TEXTS)) == COUNTS
    server.stop()
