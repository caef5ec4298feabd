"""Rows of a parity check are sampled evenly from their file, which may be sorted by label."""

import numpy as np
import pytest

from pipework.data.splits import split_source
from pipework.errors import DataError
from pipework.export.config import ExportSettings
from pipework.export.rows.run_rows import RunRows, spread_over_groups
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import open_encoder

STRETCHES = 9


@pytest.fixture
def part(regression_run):
    """A sample of a dev file whose row n, from 0, has the value -n/4."""
    return RunRows.open(
        regression_run, read_manifest(regression_run), ExportSettings(dev_rows=STRETCHES)
    )


def test_dev_has_one_row_from_each_stretch_in_file_order(part):
    places_N = part.truth_N * -4
    assert (places_N // 5).tolist() == list(range(STRETCHES))
    assert len(set((places_N % 5).tolist())) > 1  # alternating labels are all sampled


def test_rows_are_named_by_their_numbers_in_the_file(part):
    examples = list(split_source(part.run, part.manifest, "dev").rows())
    encodings = open_encoder(part.run, part.manifest).encode(examples)
    real = [row for row in (*part.dev, *part.edge_cases) if row.name.startswith("dev row ")]
    assert len(real) == 2 * STRETCHES
    for row in real:
        number = int(row.name.removeprefix("dev row "))
        assert row.encoding.ids.tolist() == encodings[number - 1].ids.tolist()


def test_the_remaining_dev_rows_are_all_that_were_not_sampled(part):
    ((encodings, truth_N),) = part.remaining_dev()
    assert len(encodings) == len(truth_N)
    both = np.concatenate([part.truth_N, truth_N])
    assert sorted((both * -4).tolist()) == list(range(part.manifest.data.splits["dev"].rows))


def moved(run, **changes):
    """The manifest of a run on a machine without its data files."""
    manifest = read_manifest(run)
    splits = {
        name: split.model_copy(update={"path": f"/none/{name}.tsv", **changes})
        for name, split in manifest.data.splits.items()
    }
    data = manifest.data.model_copy(update={"splits": splits})
    return manifest.model_copy(update={"data": data})


def test_a_run_without_its_data_files_has_the_same_rows(trained_run):
    settings = ExportSettings(dev_rows=40)
    here, there = (
        RunRows.open(trained_run, manifest, settings)
        for manifest in (read_manifest(trained_run), moved(trained_run))
    )

    def ids(rows):
        return [(row.name, row.encoding.ids.tolist()) for row in rows]

    assert ids(here.dev) == ids(there.dev)
    assert ids(here.edge_cases) == ids(there.edge_cases)
    assert here.truth_N.tolist() == there.truth_N.tolist()
    calibration = [[row.ids.tolist() for row in rows.calibration_rows()] for rows in (here, there)]
    assert len(calibration[0]) == settings.calibration_rows
    assert calibration[0] == calibration[1]
    assert len(there.calibration_rows(7)) == 7


def test_without_kept_rows_the_missing_file_is_named(trained_run):
    with pytest.raises(DataError, match=r"/none/dev\.tsv is missing"):
        RunRows.open(trained_run, moved(trained_run, kept=None), ExportSettings())


def test_calibration_rows_span_the_train_file(trained_run):
    manifest = read_manifest(trained_run)
    run_rows = RunRows.open(trained_run, manifest, ExportSettings(calibration_rows=10))
    examples = list(split_source(trained_run, manifest, "train").rows())
    encodings = open_encoder(trained_run, manifest).encode(examples)
    tenth = len(encodings) // 10
    found = run_rows.calibration_rows()
    assert len(found) == 10
    assert len(run_rows.calibration_rows(3)) == 3
    for encoding, stretch in (
        (found[0], encodings[: tenth + 1]),
        (found[-1], encodings[-tenth - 1 :]),
    ):
        assert encoding.ids.tolist() in [one.ids.tolist() for one in stretch]


def test_groups_are_covered_with_all_their_lengths():
    groups = ["rare"] * 3 + ["a"] * 500 + ["b"] * 97
    lengths = [*range(3), *range(500), *range(97)]
    chosen = spread_over_groups(groups, lengths, 43)
    picked = {
        name: [lengths[i] for i in chosen if groups[i] == name] for name in ("rare", "a", "b")
    }
    assert [len(picked[name]) for name in ("rare", "a", "b")] == [3, 20, 20]
    assert (picked["a"][0], picked["a"][-1], picked["b"][-1]) == (0, 499, 96)
    assert chosen == sorted(set(chosen))
    assert spread_over_groups(groups, lengths, 1000) == list(range(600))
