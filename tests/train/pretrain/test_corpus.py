"""The token cache of pretraining: complete, densely packed, and never stale."""

from itertools import pairwise

import numpy as np
import pytest

from pipework.data.examples import Source
from pipework.errors import ConfigError, DataError
from pipework.progress import NullProgress
from pipework.run_folder.read_options import Format, Reading
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.data.tokenizer import learn_wordpiece
from pipework.train.pretrain import corpus as code
from pipework.train.pretrain.corpus import PackingOptions, corpus


@pytest.fixture
def texts(tmp_path):
    lines = [f"{'unhappy ' * (n % 9)}word{n} stands here" for n in range(300)]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "t.txt", lines


def source(path, form=Format.TEXT):
    return Source(path=path, reading=Reading(text="text", label=None, format=form, kind="pretrain"))


def tokenizer(lines):
    settings = ModelSettings(preset=Preset.TINY, vocab_size=200)
    return learn_wordpiece(settings, lambda: lines)


def open_corpus(path, lines, *, pairs=False, form=Format.TEXT, max_length=16, row_tokens=64):
    options = PackingOptions(max_length=max_length, row_tokens=row_tokens, pairs=pairs)
    return corpus(source(path, form), tokenizer(lines).to_str(), options, NullProgress())


def test_every_token_of_every_text_is_stored_once(texts):
    path, lines = texts
    rows = open_corpus(path, lines)
    wordpiece = tokenizer(lines)
    expected = [i for line in lines for i in wordpiece.encode(line).ids[1:-1]]
    assert rows.ids.tolist() == expected
    assert sorted(index for row in range(len(rows)) for index in rows.of_row(row)) == list(
        range(rows.inputs)
    )


def test_rows_are_full_and_within_the_limit(texts):
    rows = open_corpus(*texts)
    widths = [
        sum(int(rows.offsets[i + 1] - rows.offsets[i]) + 2 for i in rows.of_row(row))
        for row in range(len(rows))
    ]
    assert widths == rows.lengths.tolist()
    assert max(widths) <= 64
    assert sum(widths) > 0.95 * 64 * len(rows)


def test_large_files_are_packed_in_parts(texts, monkeypatch):
    monkeypatch.setattr(code, "PACKED", 50)
    rows = open_corpus(*texts, row_tokens=48)
    assert sorted(rows.order.tolist()) == list(range(rows.inputs))
    assert max(rows.lengths) <= 48


def test_a_unit_starts_where_a_word_starts(texts):
    path, lines = texts
    rows, wordpiece = open_corpus(path, lines), tokenizer(lines)
    for token, starts in zip(rows.ids[:500].tolist(), rows.units[:500].tolist(), strict=True):
        assert starts is not wordpiece.id_to_token(token).startswith("##")


def test_each_chinese_token_is_a_unit(tmp_path):
    lines = ["北京天气很好iphone", "天气不好北京"] * 20
    (tmp_path / "t.txt").write_text("\n".join(lines))
    settings = ModelSettings(preset=Preset.TINY, vocab_size=60, split_cjk=False)
    wordpiece = learn_wordpiece(settings, lambda: lines)
    options = PackingOptions(max_length=16, row_tokens=64, pairs=False)
    rows = corpus(source(tmp_path / "t.txt"), wordpiece.to_str(), options, NullProgress())
    for token, starts in zip(rows.ids.tolist(), rows.units.tolist(), strict=True):
        text = wordpiece.id_to_token(token)
        assert starts or not any(character > "\u4e00" for character in text)


def test_documents_become_pairs_of_adjacent_segments(tmp_path):
    documents = [[f"segment word{n} of document{d}" for n in range(12)] for d in range(9)]
    path = tmp_path / "d.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents))
    lines = [line for document in documents for line in document]
    rows = open_corpus(path, lines, pairs=True, form=Format.DOCUMENTS, max_length=32)
    assert rows.pairs > 9
    ends = {0, *np.cumsum([len(tokenizer(lines).encode(line).ids) - 2 for line in lines]).tolist()}
    for index in np.flatnonzero(rows.middles).tolist():
        assert int(rows.offsets[index]) + int(rows.middles[index]) in ends
    assert all(start < stop for start, stop in pairwise(rows.offsets.tolist()))


def test_an_edited_file_is_read_again_and_an_empty_file_is_refused(texts):
    path, lines = texts
    before = len(open_corpus(path, lines).ids)
    path.write_text("word1\n")
    assert len(open_corpus(path, lines).ids) < before
    path.write_text("\n\n")
    with pytest.raises(DataError, match=r"contains no text"):
        open_corpus(path, lines)


def test_a_length_without_room_for_text_is_refused(texts):
    with pytest.raises(ConfigError, match=r"max_length 4 leaves no room for text"):
        open_corpus(*texts, max_length=4, pairs=True)
