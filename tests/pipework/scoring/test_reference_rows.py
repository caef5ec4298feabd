import numpy as np
import pytest

from pipework.errors import RunFolderError
from pipework.scoring.reference_rows import ReferenceRows
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding


def encodings(*, types=True, spans=True):
    return [
        Encoding(
            ids=np.arange(length, dtype=np.int32),
            type_ids=np.arange(length, dtype=np.int8) % 2 if types else None,
            entity_spans=((0, 1), (length - 1, length)) if spans else None,
        )
        for length in (2, 7, 3)
    ]


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("spans", [True, False])
def test_reference_rows_read_back_as_written(tmp_path, types, spans):
    rows = encodings(types=types, spans=spans)
    logits_NC = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    ReferenceRows(encodings=rows, outputs=Outputs.of(logits_NC)).write(tmp_path / "rows.npz")
    loaded = ReferenceRows.read(tmp_path / "rows.npz")
    np.testing.assert_array_equal(loaded.outputs.values, logits_NC)
    assert [row.entity_spans for row in loaded.encodings] == [row.entity_spans for row in rows]
    for row, expected in zip(loaded.encodings, rows, strict=True):
        np.testing.assert_array_equal(row.ids, expected.ids)
        if types:
            np.testing.assert_array_equal(row.type_ids, expected.type_ids)
        else:
            assert row.type_ids is None


def test_a_file_with_pickled_objects_is_rejected(tmp_path):
    with (tmp_path / "rows.npz").open("wb") as stream:
        np.savez(stream, lengths_N=np.array([object()]), logits_NC=np.zeros(1))
    with pytest.raises(RunFolderError, match="does not hold the reference rows of an engine"):
        ReferenceRows.read(tmp_path / "rows.npz")


def test_a_missing_or_truncated_file_is_reported(tmp_path):
    with pytest.raises(RunFolderError, match=r"rows\.npz does not hold"):
        ReferenceRows.read(tmp_path / "rows.npz")
    (tmp_path / "rows.npz").write_bytes(b"PK\x03\x04 truncated")
    with pytest.raises(RunFolderError, match=r"rows\.npz does not hold"):
        ReferenceRows.read(tmp_path / "rows.npz")


@pytest.mark.parametrize("damage", ["empty", "stream", "arrays"])
def test_a_corrupt_file_is_reported(tmp_path, damage):
    path = tmp_path / "rows.npz"
    rows = encodings(types=False)
    ReferenceRows(
        encodings=rows, outputs=Outputs.of(np.random.default_rng(0).random((3, 400), "f"))
    ).write(path)
    whole = path.read_bytes()
    match damage:
        case "empty":  # EOFError
            path.write_bytes(b"")
        case "stream":  # zlib.error: the bytes of an array are not a valid deflate stream
            start = whole.index(b"lengths_N.npy") + 40
            path.write_bytes(whole[:start] + b"\xff" * 20 + whole[start + 20 :])
        case "arrays":  # IndexError: a span with one number instead of two
            with path.open("wb") as stream:
                arrays = {"lengths_N": [1], "ids_S": [0], "spans_N22": [[[0, 1]]]}
                np.savez(stream, **arrays, logits_NC=np.zeros((1, 2)))
    with pytest.raises(RunFolderError, match=r"rows\.npz does not hold"):
        ReferenceRows.read(path)
