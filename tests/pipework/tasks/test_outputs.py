import numpy as np
import pytest

from pipework.tasks.outputs import COUNTS, Outputs, offsets_of, one_row_each, rows_of

# Three inputs with two, no and three rows.
RAGGED = Outputs(np.arange(10, dtype=np.float32).reshape(5, 2), offsets_of(np.array([2, 0, 3])))


def rows(outputs):
    """The first value of each row, by input."""
    parts = (outputs.part(i, i + 1) for i in range(len(outputs)))
    return [part.values[:, 0].tolist() for part in parts]


def test_the_rows_of_an_input_are_between_its_offsets():
    assert len(RAGGED) == 3
    assert rows(RAGGED) == [[0, 2], [], [4, 6, 8]]
    assert RAGGED.inputs.tolist() == [0, 0, 2, 2, 2]
    assert not RAGGED.one_each


def test_parts_have_their_own_offsets():
    part = RAGGED.part(1, 3)
    assert part.offsets.tolist() == [0, 0, 3]
    assert rows(part) == [[], [4, 6, 8]]
    assert len(RAGGED.part(0, 0)) == 0


def test_inputs_are_taken_in_any_order():
    assert rows(RAGGED.take([2, 0, 2])) == [[4, 6, 8], [0, 2], [4, 6, 8]]
    assert rows_of(RAGGED.offsets, [2, 0]).tolist() == [2, 3, 4, 0, 1]


def test_parts_are_concatenated():
    both = Outputs.concatenate([RAGGED.part(2, 3), RAGGED])
    assert rows(both) == [[4, 6, 8], [0, 2], [], [4, 6, 8]]
    assert Outputs.concatenate([RAGGED]) is RAGGED


def test_an_input_has_the_largest_value_of_its_rows():
    largest = RAGGED.max_per_input(np.array([1.0, 5, 2, 9, 3]))
    assert largest.tolist() == [5, -np.inf, 9]


@pytest.mark.parametrize("inputs", [0, 1, 7, len(COUNTS) - 1, len(COUNTS), len(COUNTS) + 5])
def test_a_classifier_has_one_row_for_each_input(inputs):
    outputs = Outputs.of(np.arange(inputs, dtype=np.float32)[:, None])
    assert outputs.offsets.tolist() == [*range(inputs + 1)]
    assert outputs.one_each
    assert len(outputs) == inputs
    assert outputs.take([*range(inputs)][::-1]).values[:, 0].tolist() == [*range(inputs)][::-1]
    assert Outputs.concatenate([outputs, outputs]).one_each


def test_as_many_rows_as_inputs_need_not_be_one_row_each():
    uneven = Outputs(np.zeros((2, 1), np.float32), np.array([0, 2, 2]))
    assert not uneven.one_each


def test_shared_offsets_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        one_row_each(3)[0] = 1


def test_numbers_that_are_not_finite_are_replaced():
    found = Outputs.of(np.array([[np.nan, 1]], np.float32)).finite()
    assert found.values.tolist() == [[0, 1]]
