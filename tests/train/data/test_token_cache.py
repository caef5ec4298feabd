from concurrent.futures import ThreadPoolExecutor

import pytest

from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import DataError
from pipework.progress import Silent
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.text.encoding import TextEncoder
from pipework.train.config.model import ModelSettings
from pipework.train.data.disk_cache import cache_folder
from pipework.train.data.token_cache import token_set
from pipework.train.data.tokenizer import learn

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("no", "yes"), metric=Metric.ACCURACY)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{'word ' * n}\t{n % 2}\n" for n in range(1, 10)))
    tokenizer = learn(ModelSettings(preset="tiny"), lambda: ["word word"])
    encoder = TextEncoder(tokenizer, max_length=8, type_ids=True)
    return Source(path=path, columns=Columns()), tokenizer.to_str(), encoder


def test_a_row_of_the_cache_is_its_encoding(parts):
    source, tokenizer, encoder = parts
    found = token_set(source, tokenizer, encoder, TASK, Silent())
    expected = encoder.encode(list(source.rows()))
    assert found.truth.tolist() == [n % 2 for n in range(1, 10)]
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
    token_set(source, tokenizer, encoder, TASK, Silent())
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
            encoder = encoder.limited_to(5)
    counting = Counting()
    token_set(source, tokenizer, encoder, task, counting)
    assert counting.stages == (change != "nothing")


def test_two_builders_of_one_cache_do_not_disturb_each_other(parts):
    source, tokenizer, encoder = parts
    with ThreadPoolExecutor(4) as pool:
        sets = list(
            pool.map(lambda _: token_set(source, tokenizer, encoder, TASK, Silent()), range(8))
        )
    assert {found.ids.tobytes() for found in sets} == {sets[0].ids.tobytes()}


def test_a_build_that_fails_is_never_taken_for_a_cache(parts):
    source, tokenizer, encoder = parts
    with source.path.open("a") as stream:
        stream.write("bad\tmaybe\n")
    with pytest.raises(DataError, match=r"rows\.tsv:11 has label 'maybe'"):
        token_set(source, tokenizer, encoder, TASK, Silent())
    (folder,) = (path for path in cache_folder().iterdir() if path.is_dir())
    assert not (folder / "complete").exists()
    source.path.write_text(source.path.read_text().replace("maybe", "yes"))
    assert len(token_set(source, tokenizer, encoder, TASK, Silent())) == 10


def test_a_row_is_named_by_its_line_however_far_down(parts):
    source, tokenizer, encoder = parts
    source.path.write_text("text\tlabel\n" + "word\tyes\n" * 5000 + "word\tmaybe\n")
    with pytest.raises(DataError, match=r"rows\.tsv:5002 has label 'maybe'"):
        token_set(source, tokenizer, encoder, TASK, Silent())
