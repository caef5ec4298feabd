"""The base class of the engines, with a runtime in NumPy that answers from the ids."""

import numpy as np
import pytest

from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.base import CollatedEngine, check_names
from pipework.serve.engines.collate import Collate, Costs
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding

PADDING = Padding(pad_id=0, type_ids=False)
NARROW = Collate(
    layout=Layout.PADDED,
    padding=PADDING,
    spans=False,
    costs=Costs(call_tokens=1, most_tokens=16),
)


class SumEngine(CollatedEngine):
    """Returns the sum and the number of the ids of a text; counts unfinished calls."""

    def __init__(self, collate=NARROW, classes=None):
        self.started, self.unfinished = [], 0
        super().__init__(collate, classes)

    def _start(self, arrays):
        self.started.append(arrays["input_ids"].shape)
        self.unfinished += 1

        def wait():
            self.unfinished -= 1
            sums_B = arrays["input_ids"].sum(axis=1)
            return np.stack(
                [sums_B, arrays["attention_mask"].sum(axis=1)], axis=1, dtype=np.float32
            )

        return wait

    def close(self):
        pass


def encoding(*ids):
    return Encoding(ids=np.array(ids, np.int32), type_ids=None)


INPUTS = [encoding(*range(1, length + 1)) for length in (9, 2, 16, 1, 5, 2, 30)]


def test_logits_are_in_the_order_of_the_inputs_whatever_the_calls():
    engine = SumEngine()
    expected = [[sum(one.ids), len(one)] for one in INPUTS]
    np.testing.assert_array_equal(engine.infer(INPUTS).values, expected)
    assert len(engine.started) > 3  # they did not fit one call
    assert engine.unfinished == 0


def test_no_inputs_give_no_rows_and_no_call():
    engine = SumEngine()
    engine.started.clear()
    logits_NC = engine.infer([]).values
    assert (logits_NC.shape, logits_NC.dtype) == ((0, 2), np.float32)
    assert engine.started == []


def test_computed_tokens_include_the_padding():
    engine = SumEngine()
    engine.started.clear()
    engine.infer(INPUTS)
    assert engine.computed_tokens == sum(rows * width for rows, width in engine.started)
    assert engine.computed_tokens > sum(map(len, INPUTS))


def test_the_first_call_gives_the_number_of_classes():
    assert SumEngine().started == [(1, 1)]
    given = SumEngine(classes=2)
    assert given.started == []
    assert given.infer([]).values.shape == (0, 2)


def test_only_the_first_call_is_started_before_the_logits_are_wanted():
    engine = SumEngine()
    engine.started.clear()
    finish = engine.start(INPUTS)
    assert len(engine.started) == 1
    assert finish().values.shape == (len(INPUTS), 2)


def test_a_started_call_is_finished_although_the_next_cannot_be_prepared():
    class Failing(SumEngine):
        def _feeds(self, encodings):
            yield from super()._feeds(encodings[:1])
            raise ZeroDivisionError

    engine = Failing(classes=2)
    with pytest.raises(ZeroDivisionError):
        engine.infer(INPUTS)
    assert engine.unfinished == 0


def test_learned_costs_cut_the_next_batches():
    engine = SumEngine()
    engine.learn_costs(32)
    assert engine.collate.costs != NARROW.costs
    assert not engine.collate.whole
    assert engine.collate.layout is Layout.PADDED


def test_the_names_of_a_graph_are_compared_with_those_of_its_inputs():
    check_names({"input_ids", "attention_mask"}, {"logits"}, NARROW)
    with pytest.raises(ValueError, match="expected inputs attention_mask, input_ids, found ids"):
        check_names({"ids"}, {"logits"}, NARROW)
    with pytest.raises(ValueError, match="expected the output logits, found a, b"):
        check_names({"input_ids", "attention_mask"}, {"b", "a"}, NARROW)
