import numpy as np
import pytest

from pipework.errors import RunFolderError
from pipework.scoring.reference_rows import KeptRows
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
def test_rows_read_back_as_they_were_kept(tmp_path, types, spans):
    rows = encodings(types=types, spans=spans)
    logits_NC = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    KeptRows(encodings=rows, logits_NC=logits_NC).write(tmp_path / "rows.npz")
    found = KeptRows.read(tmp_path / "rows.npz")
    np.testing.assert_array_equal(found.logits_NC, logits_NC)
    assert [one.entity_spans for one in found.encodings] == [one.entity_spans for one in rows]
    for one, kept in zip(found.encodings, rows, strict=True):
        np.testing.assert_array_equal(one.ids, kept.ids)
        if types:
            np.testing.assert_array_equal(one.type_ids, kept.type_ids)
        else:
            assert one.type_ids is None


def test_a_file_of_pickled_objects_is_refused(tmp_path):
    with (tmp_path / "rows.npz").open("wb") as stream:
        np.savez(stream, lengths_N=np.array([object()]), logits_NC=np.zeros(1))
    with pytest.raises(RunFolderError, match="does not hold the rows that prove an engine"):
        KeptRows.read(tmp_path / "rows.npz")


def test_a_missing_or_torn_file_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"rows\.npz does not hold"):
        KeptRows.read(tmp_path / "rows.npz")
    (tmp_path / "rows.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(RunFolderError, match=r"rows\.npz does not hold"):
        KeptRows.read(tmp_path / "rows.npz")


@pytest.mark.parametrize("torn", ["nothing", "stream", "arrays"])
def test_whatever_is_wrong_inside_the_file_is_told_in_words(tmp_path, torn):
    path = tmp_path / "rows.npz"
    rows = encodings(types=False)
    KeptRows(encodings=rows, logits_NC=np.random.default_rng(0).random((3, 400), "f")).write(path)
    whole = path.read_bytes()
    match torn:
        case "nothing":  # EOFError
            path.write_bytes(b"")
        case "stream":  # zlib.error: the last array's bytes are no longer a stream of deflate
            start = whole.index(b"lengths_N.npy") + 40
            path.write_bytes(whole[:start] + b"\xff" * 20 + whole[start + 20 :])
        case "arrays":  # IndexError: a place where two are due
            with path.open("wb") as stream:
                arrays = {"lengths_N": [1], "ids_S": [0], "spans_N22": [[[0, 1]]]}
                np.savez(stream, **arrays, logits_NC=np.zeros((1, 2)))
    with pytest.raises(RunFolderError, match=r"rows\.npz does not hold"):
        KeptRows.read(path)
