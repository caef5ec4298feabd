"""The rows that a run folder keeps are those of the data files."""

import pytest

from pipework.data.examples import Example
from pipework.data.kept_rows import keep_rows, kept_source, sample_evenly, spread
from pipework.errors import ChangedFileError
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.spans import Span

ROWS = {
    "text": (("text",), "single_label", Example(text='a\t"b"\u2028 é\n雨', label="3")),
    "pair": (
        ("text", "text_pair"),
        "single_label",
        Example(text="", text_pair=" x ", label="no"),
    ),
    "entities": (
        ("text", "entities"),
        "single_label",
        Example(text="rain & goal", entities=((0, 4), (7, 11)), label="R(e1,e2)"),
    ),
    "labels": (("text",), "multi_label", Example(text="a", label=("x", "a, b"))),
    "no labels": (("text",), "multi_label", Example(text="a", label=())),
    "spans": (
        ("text",),
        "tokens",
        Example(text="Ana met 雨", label=(Span(0, 3, "PER"), Span(8, 9, "X Y"))),
    ),
    "number": (("text",), "regression", Example(text="a", label="-4.250")),
}


def with_split(manifest, fields, kind, record):
    data = manifest.data
    split = data.splits["dev"].model_copy(update={"kept": record})
    reading = data.reading.model_copy(update={"kind": kind, "separator": ","})
    data = data.model_copy(update={"splits": {"dev": split}, "reading": reading})
    input_ = manifest.input.model_copy(update={"fields": fields})
    return manifest.model_copy(update={"data": data, "input": input_})


@pytest.mark.parametrize(("fields", "kind", "row"), ROWS.values(), ids=ROWS)
def test_a_row_is_read_as_it_was(exported_run, tmp_path, fields, kind, row):
    record = keep_rows(tmp_path, "dev", [row, row])
    manifest = with_split(read_manifest(exported_run), fields, kind, record)
    assert list(kept_source(tmp_path, manifest, "dev").rows()) == [row, row]
    (tmp_path / record.path).write_text("{}")
    with pytest.raises(ChangedFileError, match="changed"):
        kept_source(tmp_path, manifest, "dev")


def test_nothing_is_returned_for_a_run_that_kept_no_rows(exported_run):
    manifest = with_split(read_manifest(exported_run), ("text",), "single_label", None)
    assert kept_source(exported_run, manifest, "dev") is None


@pytest.mark.parametrize(("rows", "most"), [(0, 5), (3, 5), (5, 5), (1000, 7)])
def test_a_sample_is_spread_over_all_rows(rows, most):
    indices = spread(rows, most)
    assert len(indices) == min(rows, most)
    assert indices == sorted(set(indices))
    if rows > most:
        assert all(
            i * rows // most <= index <= (i + 1) * rows // most for i, index in enumerate(indices)
        )
    examples = [Example(text=f"{number}") for number in range(1, rows + 1)]
    sample = sample_evenly(iter(examples), rows, most)
    assert [number - 1 for number in sample] == indices
    assert all(example.text == f"{number}" for number, example in sample.items())
