"""Batches of pretraining: independent of the process, new masks each epoch, random orders."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from pipework.data.examples import Source
from pipework.progress import NullProgress
from pipework.run_folder.read_options import Format, Reading
from pipework.text.padding import Padding
from pipework.text.special_tokens import SpecialTokens
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.train import PretrainSettings
from pipework.train.data.tokenizer import SPECIAL_TOKENS, learn_wordpiece
from pipework.train.pretrain.corpus import PackingOptions, corpus
from pipework.train.pretrain.model_inputs import Masker, PackedLoader
from pipework.train.pretrain.segments import unspaced_ids

CPU = torch.device("cpu")


@pytest.fixture
def loader_fixture(tmp_path):
    """A loader over documents whose segments contain their document and position."""
    documents = [[f"d{d} s{s} of this text" for s in range(14)] for d in range(40)]
    path = tmp_path / "d.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents))
    lines = [line for document in documents for line in document]
    tokenizer = learn_wordpiece(ModelSettings(preset=Preset.TINY, vocab_size=400), lambda: lines)
    reading = Reading(label=None, format=Format.DOCUMENTS, kind="pretrain")
    source = Source(path=path, reading=reading)
    rows = corpus(
        source,
        tokenizer.to_str(),
        PackingOptions(max_length=24, row_tokens=96, pairs=True),
        NullProgress(),
    )
    return (
        PackedLoader(
            corpus=rows,
            special_tokens=SpecialTokens.of(tokenizer),
            masker=Masker(
                settings=PretrainSettings(),
                mask_id=tokenizer.token_to_id("[MASK]"),
                ordinary=np.arange(len(SPECIAL_TOKENS), tokenizer.get_vocab_size()),
                unspaced_V=unspaced_ids(tokenizer),
            ),
            padding=Padding(pad_id=0, type_ids=True, pad_type_id=0, left=False),
            seed=3,
            device=CPU,
        ),
        rows,
        Tokenizer.from_str(tokenizer.to_str()),
    )


def true_ids(inputs):
    ids_S = inputs["input_ids"].flatten().clone()
    ids_S[inputs["places"]] = inputs["targets"]
    return ids_S.reshape(inputs["input_ids"].shape)


def test_a_row_does_not_depend_on_the_other_rows_of_a_batch(loader_fixture):
    loader, rows, _ = loader_fixture
    alone, together = loader.inputs(np.array([5])), loader.inputs(np.array([0, 5, len(rows) - 1]))
    width = alone["input_ids"].shape[1]
    for name in ("input_ids", "position_ids", "segment_ids", "token_type_ids"):
        assert torch.equal(alone[name][0], together[name][1, :width])
    wide = together["input_ids"].shape[1]
    inside = (together["places"] >= wide) & (together["places"] < 2 * wide)
    assert torch.equal(together["places"][inside] - wide, alone["places"])
    assert torch.equal(together["targets"][inside], alone["targets"])


def test_masks_differ_by_epoch_and_are_reproducible(loader_fixture):
    loader, rows, _ = loader_fixture
    first, again, later = (loader.inputs(np.array([row])) for row in (5, 5, 5 + len(rows)))
    assert torch.equal(first["places"], again["places"])
    assert first["places"].tolist() != later["places"].tolist()


def test_texts_keep_their_tokens_and_positions_restart_in_each_text(loader_fixture):
    loader, rows, tokenizer = loader_fixture
    inputs = loader.inputs(np.arange(4))
    found = true_ids(inputs)
    for row in range(4):
        for segment, index in enumerate(rows.of_row(row)):
            here = inputs["segment_ids"][row] == segment
            ids = found[row][here].tolist()
            assert inputs["position_ids"][row][here].tolist() == list(range(len(ids)))
            assert ids[0] == tokenizer.token_to_id("[CLS]")
            text_ids = [token for token in ids if token not in (2, 3)]
            span = slice(int(rows.offsets[index]), int(rows.offsets[index + 1]))
            assert sorted(text_ids) == sorted(rows.ids[span].tolist())


def test_swapped_pairs_are_balanced_and_labelled_correctly(loader_fixture):
    loader, rows, tokenizer = loader_fixture
    swapped, reversed_pairs = [], []
    for epoch in range(6):
        inputs = loader.inputs(np.arange(len(rows)) + epoch * len(rows))
        found = true_ids(inputs).flatten()
        flat_types = inputs["token_type_ids"].flatten()
        segments = inputs["segment_ids"].flatten()
        for start, label in zip(inputs["pairs"].tolist(), inputs["swapped"].tolist(), strict=True):
            end = start + 1
            while end < len(segments) and segments[end] == segments[start]:
                end += 1
            halves = [
                tokenizer.decode(found[start:end][flat_types[start:end] == kind].tolist())
                for kind in (0, 1)
            ]
            first, second = (int(half.split(" s", 1)[1].split()[0]) for half in halves)
            reversed_pairs.append(first > second)
            swapped.append(bool(label))
    assert reversed_pairs == swapped
    assert len(swapped) > 400
    assert np.mean(swapped) == pytest.approx(0.5, abs=0.07)
