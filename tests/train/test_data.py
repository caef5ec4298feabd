from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipework.encoding import TextEncoder
from pipework.errors import DataError
from pipework.examples import Columns, Source
from pipework.progress import Silent
from train.config import ModelSettings
from train.data import cache_folder, length_grouped, token_set
from train.tokenizer import learn

LABELS = ("no", "yes")


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{'word ' * n}\t{n % 2}\n" for n in range(1, 10)))
    tokenizer = learn(ModelSettings(preset="tiny"), lambda: ["word word"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = TextEncoder(tokenizer, max_length=8, type_ids=True)
    return Source(path=path, columns=Columns()), tmp_path / "tokenizer.json", encoder


def test_a_row_of_the_cache_is_its_encoding(parts):
    source, tokenizer, encoder = parts
    found = token_set(source, tokenizer, encoder, LABELS, Silent())
    expected = encoder.encode(list(source.rows()))
    assert found.labels.tolist() == [n % 2 for n in range(1, 10)]
    assert found.lengths.tolist() == [len(one) for one in expected]
    for row, one in enumerate(expected):
        assert found.encoding(row).ids.tolist() == one.ids.tolist()
        assert found.encoding(row).type_ids.tolist() == one.type_ids.tolist()


class Counting(Silent):
    def __init__(self):
        self.stages = 0

    def begin(self, title, total, unit):  # noqa: ARG002
        self.stages += 1


@pytest.mark.parametrize("change", ["nothing", "rows", "tokenizer", "labels", "length"])
def test_the_cache_is_reused_only_when_nothing_changed(parts, change):
    source, tokenizer, encoder = parts
    token_set(source, tokenizer, encoder, LABELS, Silent())
    labels = LABELS
    match change:
        case "rows":
            text = source.path.read_text()
            source.path.write_text(text.replace("word", "drow"))
        case "tokenizer":
            tokenizer.write_text(tokenizer.read_text() + " ")
        case "labels":
            labels = ("yes", "no")
        case "length":
            encoder = encoder.limited_to(5)
    counting = Counting()
    token_set(source, tokenizer, encoder, labels, counting)
    assert counting.stages == (change != "nothing")


def test_two_builders_of_one_cache_do_not_disturb_each_other(parts):
    source, tokenizer, encoder = parts
    with ThreadPoolExecutor(4) as pool:
        sets = list(
            pool.map(lambda _: token_set(source, tokenizer, encoder, LABELS, Silent()), range(8))
        )
    assert {found.ids.tobytes() for found in sets} == {sets[0].ids.tobytes()}


def test_a_build_that_fails_is_never_taken_for_a_cache(parts):
    source, tokenizer, encoder = parts
    with source.path.open("a") as stream:
        stream.write("bad\tmaybe\n")
    with pytest.raises(DataError, match=r"rows\.tsv: row 10 has label 'maybe'"):
        token_set(source, tokenizer, encoder, LABELS, Silent())
    (folder,) = cache_folder().iterdir()
    assert not (folder / "complete").exists()
    source.path.write_text(source.path.read_text().replace("maybe", "yes"))
    assert len(token_set(source, tokenizer, encoder, LABELS, Silent())) == 10


@pytest.mark.parametrize("rows", range(1, 10))
def test_every_row_is_in_one_batch_of_an_epoch(rows):
    lengths = np.arange(rows) % 3 + 3
    batches = list(length_grouped(lengths, 4, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    assert max(len(batch) for batch in batches) <= 4


def test_batches_hold_like_lengths_and_change_with_the_epoch():
    random = np.random.default_rng(0)
    lengths = random.lognormal(3, 0.7, 20_000).astype(np.int64) + 2
    first, second = (list(length_grouped(lengths, 32, random)) for _ in range(2))
    shuffled = np.split(random.permutation(20_000), 20_000 // 32)

    def waste(batches):
        return sum(len(batch) * lengths[batch].max() for batch in batches) - lengths.sum()

    assert waste(first) < 0.1 * waste(shuffled)
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in second]


def test_a_set_smaller_than_a_megabatch_is_not_the_same_batches_each_epoch():
    random = np.random.default_rng(0)
    lengths = np.arange(400) + 10
    epochs = [
        {tuple(sorted(batch)) for batch in length_grouped(lengths, 16, random)} for _ in range(2)
    ]
    assert len(epochs[0] & epochs[1]) < 5
