import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from pipework.data.examples import Example, Source
from pipework.errors import DataError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Reading
from pipework.tasks.kinds import Metric
from pipework.tasks.labels import NO_LABEL
from pipework.tasks.outputs import NO_PLACE
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.spans import bio_tags
from pipework.tasks.tokens import TokenTask
from pipework.tasks.windows import Windows
from pipework.text.encoding import TextEncoder
from pipework.train.config.model import ModelSettings
from pipework.train.data.disk_cache import cache_folder
from pipework.train.data.token_cache import open_token_cache
from pipework.train.data.tokenizer import learn_wordpiece
from tests.train.counted_progress import CountedProgress

TASK = SingleLabelTask(labels=("no", "yes"), metric=Metric.ACCURACY)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{'word ' * n}\t{n % 2}\n" for n in range(1, 10)))
    tokenizer = learn_wordpiece(ModelSettings(preset="tiny"), lambda: ["word word"])
    encoder = TextEncoder(tokenizer, max_length=8, type_ids=True)
    return Source(path=path), tokenizer.to_str(), encoder


def test_a_row_of_the_cache_equals_its_encoding(parts):
    source, tokenizer, encoder = parts
    tokens = open_token_cache(source, tokenizer, encoder, TASK, NullProgress())
    expected = encoder.encode(list(source.rows()))
    assert tokens.truth.tolist() == [n % 2 for n in range(1, 10)]
    assert tokens.lengths.tolist() == [len(encoding) for encoding in expected]
    for row, encoding in enumerate(expected):
        assert tokens.encoding(row).ids.tolist() == encoding.ids.tolist()
        assert tokens.encoding(row).type_ids.tolist() == encoding.type_ids.tolist()


@pytest.mark.parametrize("stride", [0, 3])
def test_each_window_of_a_longer_text_is_a_row_with_its_label(parts, stride):
    source, tokenizer, encoder = parts
    windows = Windows(stride=stride)
    open_token_cache(source, tokenizer, encoder, TASK, NullProgress())  # another cache
    tokens = open_token_cache(source, tokenizer, encoder, TASK, NullProgress(), windows)
    expected = encoder.encode_windows([*source.rows()], windows)
    flat = [window for first in expected for window in (first, *first.others)]
    assert len(flat) > len(expected)
    assert [one.ids.tolist() for one in tokens.encodings(range(len(tokens)))] == [
        one.ids.tolist() for one in flat
    ]
    labels = [n % 2 for n in range(1, 10)]
    assert tokens.truth.tolist() == [
        label for label, first in zip(labels, expected, strict=True) for _ in (0, *first.others)
    ]


def test_the_tags_of_a_longer_text_are_each_in_one_window(parts, tmp_path):
    *_, tokenizer, encoder = parts
    task = TokenTask(labels=bio_tags(("X",)), metric=Metric.MICRO_F1)
    texts = ["do word", "word do row word " * 9]
    found = [[[one.start(), one.end(), "X"] for one in re.finditer("word", text)] for text in texts]
    rows = [{"text": text, "spans": spans} for text, spans in zip(texts, found, strict=True)]
    path = tmp_path / "spans.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Source(path=path, reading=Reading(label="spans", kind="tokens"))
    windows = Windows(stride=3)
    tokens = open_token_cache(source, tokenizer, encoder, task, NullProgress(), windows)
    examples = [Example(text=text) for text in texts]
    whole = encoder.window_places(examples, task.tagged, windows)
    assert len(tokens) > 3
    flat = np.concatenate(
        [row[:length] for row, length in zip(tokens.truth, tokens.lengths.tolist(), strict=True)]
    )
    located = np.concatenate(whole)[:, 0] != NO_PLACE
    np.testing.assert_array_equal(flat != NO_LABEL, located)
    assert (flat == task.labels.index("B-X")).sum() == 1 + 18
    assert tokens.truth[:, -1].tolist() == [0] * len(tokens)


@pytest.mark.parametrize("change", ["nothing", "rows", "tokenizer", "labels", "length"])
def test_the_cache_is_reused_only_when_nothing_changed(parts, change):
    source, tokenizer, encoder = parts
    open_token_cache(source, tokenizer, encoder, TASK, NullProgress())
    task = TASK
    match change:
        case "rows":
            text = source.path.read_text()
            source.path.write_text(text.replace("word", "drow"))
        case "tokenizer":
            tokenizer += " "
        case "labels":
            task = TASK.model_copy(update={"labels": ("yes", "no")})
        case "length":
            encoder = encoder.with_max_length(5)
    counting = CountedProgress()
    open_token_cache(source, tokenizer, encoder, task, counting)
    assert counting.stages == (change != "nothing")


def test_concurrent_builds_give_the_same_cache(parts):
    source, tokenizer, encoder = parts
    with ThreadPoolExecutor(4) as pool:
        sets = list(
            pool.map(
                lambda _: open_token_cache(source, tokenizer, encoder, TASK, NullProgress()),
                range(8),
            )
        )
    assert {tokens.ids.tobytes() for tokens in sets} == {sets[0].ids.tobytes()}


def test_a_failed_build_is_not_used_as_cache(parts):
    source, tokenizer, encoder = parts
    with source.path.open("a") as stream:
        stream.write("bad\tmaybe\n")
    with pytest.raises(DataError, match=r"rows\.tsv:11 has label 'maybe'"):
        open_token_cache(source, tokenizer, encoder, TASK, NullProgress())
    (folder,) = (path for path in cache_folder().iterdir() if path.is_dir())
    assert not (folder / "complete").exists()
    source.path.write_text(source.path.read_text().replace("maybe", "yes"))
    assert len(open_token_cache(source, tokenizer, encoder, TASK, NullProgress())) == 10


def test_an_error_in_a_late_chunk_names_its_line(parts):
    source, tokenizer, encoder = parts
    source.path.write_text("text\tlabel\n" + "word\tyes\n" * 5000 + "word\tmaybe\n")
    with pytest.raises(DataError, match=r"rows\.tsv:5002 has label 'maybe'"):
        open_token_cache(source, tokenizer, encoder, TASK, NullProgress())


def test_the_progress_reaches_the_size_of_the_file(parts):
    source, tokenizer, encoder = parts
    open_token_cache(source, tokenizer, encoder, TASK, totals := CountedProgress())
    assert totals.done >= totals.total > 0


def test_rows_that_are_all_left_out_are_reported(parts):
    source, tokenizer, encoder = parts
    train = replace(source, part=Part(without=("dev",)), excluded=(source,))
    with pytest.raises(
        DataError, match="has no rows left: all are also in dev, test or calibration"
    ) as error:
        open_token_cache(train, tokenizer, encoder, TASK, NullProgress())
    assert "data.drop_leaked" in error.value.hint
