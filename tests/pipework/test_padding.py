import numpy as np

from pipework.encoding import Encoding
from pipework.padding import pad


def encoding(*ids: int, type_ids: tuple[int, ...] | None = None) -> Encoding:
    kinds = None if type_ids is None else np.array(type_ids, np.int8)
    return Encoding(ids=np.array(ids, np.int32), type_ids=kinds)


def test_rows_are_padded_on_the_right_and_masked() -> None:
    batch = pad([encoding(7), encoding(8, 9, 10)], pad_id=5, type_ids=False)
    assert batch.ids_BT.tolist() == [[7, 5, 5], [8, 9, 10]]
    assert batch.mask_BT.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.type_ids_BT is None
    assert batch.ids_BT.dtype == batch.mask_BT.dtype == np.int64


def test_type_ids_are_kept_where_the_model_has_them() -> None:
    batch = pad([encoding(7, 8, type_ids=(0, 1)), encoding(9)], pad_id=0, type_ids=True)
    assert batch.type_ids_BT is not None
    assert batch.type_ids_BT.tolist() == [[0, 1], [0, 0]]
