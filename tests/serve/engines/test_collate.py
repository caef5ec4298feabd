import numpy as np
import pytest

from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import CPU, PACKED_SLACK, ROW_TOKENS, Collate, Costs, plan
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding

PADDING = Padding(pad_id=0, type_ids=True)


@pytest.mark.parametrize("max_tokens", [1, 40, 512])
def test_every_input_is_in_one_micro_batch_within_the_budget(max_tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 129, 300).tolist()
    batches = plan(lengths, Costs(call_tokens=16, most_tokens=max_tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(300))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= max_tokens


def test_padding_never_costs_more_than_a_call() -> None:
    lengths = np.random.default_rng(1).integers(1, 129, 300).tolist()
    for batch in plan(lengths, CPU):
        longest = max(lengths[index] for index in batch)
        assert sum(longest - lengths[index] for index in batch) <= CPU.call_tokens


def test_a_dear_call_is_worth_more_padding() -> None:
    lengths = np.random.default_rng(1).integers(1, 129, 300).tolist()
    calls = [
        len(plan(lengths, Costs(call_tokens=tokens, most_tokens=4096))) for tokens in (16, 2000)
    ]
    assert calls[1] < calls[0] / 4


def test_equal_lengths_share_one_micro_batch() -> None:
    assert plan([20] * 8, CPU) == [list(range(8))]


def test_an_empty_batch_has_no_micro_batches() -> None:
    assert plan([], CPU) == []


def collate(layout: Layout, **given: object) -> Collate:
    return Collate(layout=layout, padding=PADDING, spans=False, **given)


def inputs(count: int) -> list[Encoding]:
    """Inputs of 1 to 90 tokens; the ids of input n are all n."""
    lengths = np.random.default_rng(2).integers(1, 91, count)
    return [
        Encoding(ids=np.full(length, n, np.int32), type_ids=np.zeros(length, np.int8))
        for n, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("whole", [False, True])
def test_every_input_is_in_one_call_with_the_arrays_that_the_graph_takes(layout, whole):
    given, way = inputs(50), collate(layout, whole=whole)
    feeds = list(way.feeds(given))
    assert sorted(row for feed in feeds for row in feed.rows) == list(range(50))
    assert all(set(feed.arrays) == way.names for feed in feeds)
    assert (len(feeds) == 1) == whole


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("first_only", [False, True])
def test_the_logits_of_a_packed_call_are_of_its_rows_in_their_order(whole, first_only):
    given, way = inputs(50), collate(Layout.PACKED, whole=whole, first_only=first_only)
    for feed in way.feeds(given):
        index_NL, flat = feed.arrays["text_index"], feed.arrays["input_ids"].ravel()
        assert flat[index_NL[:, 0]].tolist() == list(feed.rows)
        if not first_only:
            assert (index_NL >= 0).sum(1).tolist() == [len(given[row]) for row in feed.rows]


def test_packed_calls_and_their_rows_have_no_more_tokens_than_are_set():
    for way, row_tokens in (
        (collate(Layout.PACKED), ROW_TOKENS),
        (collate(Layout.PACKED, row_tokens=100), 100),
    ):
        shapes = [feed.arrays["input_ids"].shape for feed in way.feeds(inputs(50))]
        filled = [(feed.arrays["segment_ids"] >= 0).sum() for feed in way.feeds(inputs(50))]
        assert (
            max(filled) <= PACKED_SLACK * CPU.most_tokens < sum(filled) == sum(map(len, inputs(50)))
        )
        assert max(width for _, width in shapes) <= row_tokens


@pytest.mark.parametrize(
    ("texts", "calls"), [(32, [32]), (33, [16, 17]), (64, [32, 32]), (68, [22, 23, 23])]
)
def test_a_packed_batch_slightly_larger_than_a_call_is_not_split(texts, calls):
    given = [Encoding(ids=np.zeros(20, np.int32), type_ids=np.zeros(20, np.int8))] * texts
    way = collate(Layout.PACKED, costs=Costs(call_tokens=16, most_tokens=512))
    assert sorted(len(feed.rows) for feed in way.feeds(given)) == calls


def test_no_inputs_make_no_call():
    assert list(collate(Layout.PACKED).feeds([])) == list(collate(Layout.PADDED).feeds([])) == []
