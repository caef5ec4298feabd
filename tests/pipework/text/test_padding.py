import numpy as np
import pytest

from pipework.text.encoding import Encoding
from pipework.text.padding import Padding, pad


def encoding(*ids: int, type_ids: tuple[int, ...] | None = None) -> Encoding:
    kinds = None if type_ids is None else np.array(type_ids, np.int8)
    return Encoding(ids=np.array(ids, np.int32), type_ids=kinds)


def test_rows_are_padded_on_the_right_and_masked() -> None:
    batch = pad([encoding(7), encoding(8, 9, 10)], Padding(pad_id=5, type_ids=False))
    assert batch["input_ids"].tolist() == [[7, 5, 5], [8, 9, 10]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert "token_type_ids" not in batch
    assert batch["input_ids"].dtype == batch["attention_mask"].dtype == np.int64


def test_type_ids_are_padded_if_the_model_has_them() -> None:
    batch = pad([encoding(7, 8, type_ids=(0, 1)), encoding(9)], Padding(pad_id=0, type_ids=True))
    assert "token_type_ids" in batch
    assert batch["token_type_ids"].tolist() == [[0, 1], [0, 0]]


def test_rows_are_padded_on_the_left_if_configured() -> None:
    padding = Padding(pad_id=5, type_ids=True, pad_type_id=3, left=True)
    batch = pad([encoding(7, type_ids=(1,)), encoding(8, 9, type_ids=(0, 2))], padding)
    assert batch["input_ids"].tolist() == [[5, 7], [8, 9]]
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 1]]
    assert batch["token_type_ids"].tolist() == [[3, 1], [0, 2]]


@pytest.mark.parametrize(("left", "first"), [(False, [0, 1, 2, 3]), (True, [2, 3, 4, 5])])
def test_spans_are_relative_to_the_padded_row(left: bool, first: list[int]) -> None:
    rows = [
        Encoding(ids=np.zeros(3, np.int32), type_ids=None, entity_spans=((0, 1), (2, 3))),
        Encoding(ids=np.zeros(5, np.int32), type_ids=None, entity_spans=((3, 5), (0, 2))),
    ]
    spans = pad(rows, Padding(pad_id=0, type_ids=False, left=left))["entity_spans"]
    assert spans.tolist() == [first, [3, 5, 0, 2]]
    assert spans.dtype == np.int64


def test_without_entities_there_are_no_spans() -> None:
    assert pad([encoding(7)], Padding(pad_id=0, type_ids=False)).keys() == {
        "input_ids",
        "attention_mask",
    }
