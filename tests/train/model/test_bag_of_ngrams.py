"""The linear model as a model of transformers."""

import numpy as np
import pytest
import torch

from pipework.train.config.model import HeadSettings
from pipework.train.model.bag_of_ngrams import NO_TOKEN, BagOfNgrams, BagOfNgramsConfig, ngram_table
from pipework.train.model.classifier import Classifier, open_checkpoint

CLS, SEP = 2, 3


def model(separator=NO_TOKEN, buckets=97, labels=3):
    torch.manual_seed(0)
    config = BagOfNgramsConfig(
        vocab_size=50, buckets=buckets, start_id=CLS, separator_id=separator, num_labels=labels
    )
    made = BagOfNgrams(config)
    torch.nn.init.normal_(made.table.weight)
    made.table.weight.data[:, -1].abs_()
    return Classifier(made, HeadSettings()).eval()


def batch(*rows):
    length = max(map(len, rows))
    ids_BT = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    return ids_BT, (torch.arange(length) < lengths_B1).to(torch.int64)


ONE = [CLS, 7, 8, 9, SEP]
PAIR = [CLS, 7, 8, SEP, 9, 7, SEP]


@pytest.mark.parametrize(("separator", "row"), [(NO_TOKEN, ONE), (SEP, PAIR)])
@torch.no_grad()
def test_padding_does_not_change_the_logits(separator, row):
    bag = model(separator)
    alone = bag(*batch(row))
    both = bag(*batch(row, [CLS, *range(10, 40), SEP, 0, SEP]))
    torch.testing.assert_close(both[:1], alone)


@torch.no_grad()
def test_the_logits_are_a_normalised_sum_of_the_table():
    bag = model()
    ids_BT, mask_BT = batch(ONE)
    values_TK = bag.model.table(bag.model.rows(ids_BT, mask_BT))[0].double()
    total_K = values_TK.sum(0)
    layer = bag.model.classifier
    expected = total_K[:-1] / total_K[-1].sqrt() @ layer.weight.double().T + layer.bias
    torch.testing.assert_close(bag(ids_BT, mask_BT)[0].double(), expected, rtol=1e-5, atol=1e-5)


def test_tokens_of_a_pair_count_by_text_and_whether_both_have_them():
    rows = model(SEP).model.rows(*batch(PAIR))[0]
    assert rows[: len(PAIR)].tolist() == [2, 7 + 100, 8, 3 + 100, 9 + 50, 7 + 150, 3 + 150]


def test_a_bigram_depends_on_the_order():
    bag = model(buckets=10_007).model
    forward, backward = (bag.rows(*batch(row))[0] for row in (ONE, [CLS, 9, 8, 7, SEP]))
    assert len({*forward[5:].tolist()} & {*backward[5:].tolist()}) == 1  # the start token


@pytest.mark.parametrize("separator", [NO_TOKEN, SEP])
def test_a_saved_model_is_the_same_and_has_a_table(tmp_path, separator):
    bag, row = model(separator), PAIR
    bag.save(tmp_path)
    with torch.no_grad():
        assert torch.equal(open_checkpoint(tmp_path)(*batch(row)), bag(*batch(row)))
    read = ngram_table(tmp_path).read_by(np.array(row, np.int32))
    expected = bag.model.rows(*batch(row))[0, len(row) + 1 :] - bag.config.kinds
    assert read.tolist() == expected.tolist()
