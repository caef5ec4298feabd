"""Rows as the model takes them: alike in every process, masks anew each epoch, orders by chance."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from pipework.data.examples import Source
from pipework.data.readers import Columns, Format
from pipework.progress import Silent
from pipework.run_folder.task import TaskKind
from pipework.text.padding import Padding
from pipework.text.special_tokens import Frame
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.train import PretrainSettings
from pipework.train.data.tokenizer import SPECIAL, learn
from pipework.train.pretrain.corpus import Laying, corpus
from pipework.train.pretrain.masking import Masker
from pipework.train.pretrain.model_inputs import PackedFeed
from pipework.train.pretrain.segments import unspaced_ids

CPU = torch.device("cpu")


@pytest.fixture
def feed(tmp_path):
    """A feed over documents whose segments say in which document and where they stand."""
    documents = [[f"d{d} s{s} of this text" for s in range(14)] for d in range(40)]
    path = tmp_path / "d.txt"
    path.write_text("\n\n".join("\n".join(one) for one in documents))
    lines = [line for one in documents for line in one]
    spelled = learn(ModelSettings(preset=Preset.TINY, vocab_size=400), lambda: lines)
    columns = Columns(text="text", label=None)
    source = Source(path=path, columns=columns, format=Format.DOCUMENTS, kind=TaskKind.PRETRAIN)
    rows = corpus(
        source, spelled.to_str(), Laying(max_length=24, row_tokens=96, pairs=True), Silent()
    )
    return (
        PackedFeed(
            rows,
            frame=Frame.of(spelled),
            masker=Masker(
                settings=PretrainSettings(),
                mask_id=spelled.token_to_id("[MASK]"),
                ordinary=np.arange(len(SPECIAL), spelled.get_vocab_size()),
                unspaced_V=unspaced_ids(spelled),
            ),
            padding=Padding(pad_id=0, type_ids=True, pad_type_id=0, left=False),
            seed=3,
            device=CPU,
        ),
        rows,
        Tokenizer.from_str(spelled.to_str()),
    )


def true_ids(inputs):
    ids_S = inputs["input_ids"].flatten().clone()
    ids_S[inputs["places"]] = inputs["targets"]
    return ids_S.reshape(inputs["input_ids"].shape)


def test_a_row_is_the_same_whatever_stands_beside_it(feed):
    one, rows, _ = feed
    alone, beside = one.inputs(np.array([5])), one.inputs(np.array([0, 5, len(rows) - 1]))
    width = alone["input_ids"].shape[1]
    for name in ("input_ids", "position_ids", "segment_ids", "token_type_ids"):
        assert torch.equal(alone[name][0], beside[name][1, :width])
    wide = beside["input_ids"].shape[1]
    inside = (beside["places"] >= wide) & (beside["places"] < 2 * wide)
    assert torch.equal(beside["places"][inside] - wide, alone["places"])
    assert torch.equal(beside["targets"][inside], alone["targets"])


def test_each_epoch_hides_other_tokens_and_a_second_look_the_same(feed):
    one, rows, _ = feed
    first, again, later = (one.inputs(np.array([row])) for row in (5, 5, 5 + len(rows)))
    assert torch.equal(first["places"], again["places"])
    assert first["places"].tolist() != later["places"].tolist()


def test_texts_keep_their_tokens_and_positions_begin_anew(feed):
    one, rows, spelled = feed
    inputs = one.inputs(np.arange(4))
    found = true_ids(inputs)
    for row in range(4):
        for segment, index in enumerate(rows.of_row(row)):
            here = inputs["segment_ids"][row] == segment
            ids = found[row][here].tolist()
            assert inputs["position_ids"][row][here].tolist() == list(range(len(ids)))
            assert ids[0] == spelled.token_to_id("[CLS]")
            kept = [token for token in ids if token not in (2, 3)]
            span = slice(int(rows.offsets[index]), int(rows.offsets[index + 1]))
            assert sorted(kept) == sorted(rows.ids[span].tolist())


def test_orders_are_balanced_and_true(feed):
    one, rows, spelled = feed
    swapped, ahead = [], []
    for epoch in range(6):
        inputs = one.inputs(np.arange(len(rows)) + epoch * len(rows))
        found = true_ids(inputs).flatten()
        flat_types = inputs["token_type_ids"].flatten()
        segments = inputs["segment_ids"].flatten()
        for start, label in zip(inputs["pairs"].tolist(), inputs["swapped"].tolist(), strict=True):
            end = start + 1
            while end < len(segments) and segments[end] == segments[start]:
                end += 1
            halves = [
                spelled.decode(found[start:end][flat_types[start:end] == kind].tolist())
                for kind in (0, 1)
            ]
            first, second = (int(half.split(" s", 1)[1].split()[0]) for half in halves)
            ahead.append(first > second)
            swapped.append(bool(label))
    assert ahead == swapped
    assert len(swapped) > 400
    assert np.mean(swapped) == pytest.approx(0.5, abs=0.07)
