"""The token cache of texts to pretrain on: whole, packed full, and never stale."""

from itertools import pairwise

import numpy as np
import pytest

from pipework.data.examples import Source
from pipework.data.readers import Columns, Format
from pipework.errors import ConfigError, DataError
from pipework.progress import Silent
from pipework.run_folder.task import TaskKind
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.data.tokenizer import learn
from pipework.train.pretrain import corpus as code
from pipework.train.pretrain.corpus import Laying, corpus


@pytest.fixture
def texts(tmp_path):
    lines = [f"{'unhappy ' * (n % 9)}word{n} stands here" for n in range(300)]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "t.txt", lines


def source(path, form=Format.TEXT):
    return Source(
        path=path, columns=Columns(text="text", label=None), format=form, kind=TaskKind.PRETRAIN
    )


def tokenizer(lines):
    settings = ModelSettings(preset=Preset.TINY, vocab_size=200)
    return learn(settings, lambda: lines)


def opened(path, lines, *, pairs=False, form=Format.TEXT, max_length=16, row_tokens=64):
    laying = Laying(max_length=max_length, row_tokens=row_tokens, pairs=pairs)
    return corpus(source(path, form), tokenizer(lines).to_str(), laying, Silent())


def test_every_token_of_every_text_is_there_once(texts):
    path, lines = texts
    found = opened(path, lines)
    expected = [i for line in lines for i in tokenizer(lines).encode(line).ids[1:-1]]
    assert found.ids.tolist() == expected
    assert sorted(index for row in range(len(found)) for index in found.of_row(row)) == list(
        range(found.inputs)
    )


def test_rows_are_full_and_none_is_too_wide(texts):
    found = opened(*texts)
    widths = [
        sum(int(found.offsets[i + 1] - found.offsets[i]) + 2 for i in found.of_row(row))
        for row in range(len(found))
    ]
    assert widths == found.lengths.tolist()
    assert max(widths) <= 64
    assert sum(widths) > 0.95 * 64 * len(found)


def test_large_files_are_packed_part_by_part(texts, monkeypatch):
    monkeypatch.setattr(code, "PACKED", 50)
    found = opened(*texts, row_tokens=48)
    assert sorted(found.order.tolist()) == list(range(found.inputs))
    assert max(found.lengths) <= 48


def test_a_unit_begins_where_a_word_does(texts):
    path, lines = texts
    found, spelled = opened(path, lines), tokenizer(lines)
    for token, begins in zip(found.ids[:500].tolist(), found.units[:500].tolist(), strict=True):
        assert begins is not spelled.id_to_token(token).startswith("##")


def test_in_chinese_each_token_is_a_unit_even_of_an_unsplit_vocabulary(tmp_path):
    lines = ["北京天气很好iphone", "天气不好北京"] * 20
    (tmp_path / "t.txt").write_text("\n".join(lines))
    settings = ModelSettings(preset=Preset.TINY, vocab_size=60, split_cjk=False)
    spelled = learn(settings, lambda: lines)
    laying = Laying(max_length=16, row_tokens=64, pairs=False)
    found = corpus(source(tmp_path / "t.txt"), spelled.to_str(), laying, Silent())
    for token, begins in zip(found.ids.tolist(), found.units.tolist(), strict=True):
        text = spelled.id_to_token(token)
        assert begins or not any(character > "\u4e00" for character in text)


def test_documents_become_pairs_of_neighbours(tmp_path):
    documents = [[f"segment word{n} of document{d}" for n in range(12)] for d in range(9)]
    path = tmp_path / "d.txt"
    path.write_text("\n\n".join("\n".join(one) for one in documents))
    lines = [line for one in documents for line in one]
    found = opened(path, lines, pairs=True, form=Format.DOCUMENTS, max_length=32)
    assert found.pairs > 9
    ends = {0, *np.cumsum([len(tokenizer(lines).encode(line).ids) - 2 for line in lines]).tolist()}
    for index in np.flatnonzero(found.middles).tolist():
        assert int(found.offsets[index]) + int(found.middles[index]) in ends
    assert all(start < stop for start, stop in pairwise(found.offsets.tolist()))


def test_an_edited_file_is_read_anew_and_an_empty_one_refused(texts):
    path, lines = texts
    before = len(opened(path, lines).ids)
    path.write_text("word1\n")
    assert len(opened(path, lines).ids) < before
    path.write_text("\n\n")
    with pytest.raises(DataError, match=r"holds no text"):
        opened(path, lines)


def test_no_room_for_text_is_refused(texts):
    with pytest.raises(ConfigError, match=r"max_length 4 leaves no token"):
        opened(*texts, max_length=4, pairs=True)
