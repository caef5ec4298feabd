import numpy as np
import onnxruntime
import pytest
import torch

from pipework.errors import ConfigError
from pipework.train.config.model import (
    CnnSettings,
    Head,
    HeadSettings,
    PoolingSettings,
    RnnSettings,
)
from pipework.train.model.heads import make_head, to_column_0

OWN = [head for head in Head if head is not Head.LINEAR]
LENGTHS = (2, 9, 5, 3)
WIDTH, CLASSES = 8, 3


def head_of(kind, *, cls_last=False, **changes):
    torch.manual_seed(0)
    settings = HeadSettings(
        head=kind,
        cnn=CnnSettings(filter_sizes=(2, 3, 4), filters=5),
        rnn=RnnSettings(hidden=6, layers=2, **changes),
    )
    return make_head(settings, width=WIDTH, classes=CLASSES, cls_last=cls_last).eval()


def batch(*, left=False):
    """Rows of several lengths, with noise where the padding is."""
    torch.manual_seed(1)
    longest = max(LENGTHS)
    states = torch.randn(len(LENGTHS), longest, WIDTH)
    mask = torch.zeros(len(LENGTHS), longest, dtype=torch.int64)
    spans = torch.tensor([[0, 1, 1, 2], [1, 4, 5, 8], [0, 3, 3, 5], [2, 3, 0, 1]])
    for row, length in enumerate(LENGTHS):
        start = longest - length if left else 0
        mask[row, start : start + length] = 1
        spans[row] += start
    return states, mask, spans


def alone(states, mask, spans, row):
    """One row of a batch without its padding."""
    inside = mask[row].bool()
    start = int(inside.int().argmax())
    return states[row : row + 1, inside], mask[row : row + 1, inside], spans[row : row + 1] - start


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("cls_last", [False, True])
@torch.inference_mode()
def test_logits_do_not_depend_on_padding_or_other_rows(kind, left, cls_last):
    head = head_of(kind, cls_last=cls_last)
    inputs = batch(left=left)
    together = head(*(to_column_0(*inputs) if left else inputs))
    for row in range(len(LENGTHS)):
        torch.testing.assert_close(
            head(*alone(*inputs, row))[0], together[row], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("normalize", [False, True])
@torch.inference_mode()
def test_a_pooling_head_reads_the_mean_or_the_text_token(normalize):
    states, mask, _ = batch()
    for mode, column in (("mean", None), ("cls", 0), ("cls", -1)):
        settings = HeadSettings(
            head=Head.POOLING, pooling=PoolingSettings(mode=mode, normalize=normalize)
        )
        head = make_head(settings, width=WIDTH, classes=CLASSES, cls_last=column == -1).eval()
        for row, length in enumerate(LENGTHS):
            inside = states[row, :length]
            pooled = inside.mean(0) if column is None else inside[column]
            expected = head.out(pooled / pooled.norm() if normalize else pooled)
            torch.testing.assert_close(head(states, mask, None)[row], expected)


@torch.inference_mode()
def test_a_bidirectional_head_equals_that_of_torch():
    for kind in (Head.LSTM, Head.GRU):
        head = head_of(kind)
        library = getattr(torch.nn, kind.upper())(
            WIDTH, 6, num_layers=2, bidirectional=True, batch_first=True
        )
        state = {}
        for direction, suffix in ((head.forwards, ""), (head.backwards, "_reverse")):
            for depth, layer in enumerate(direction):
                state |= {
                    f"{name.removesuffix('0')}{depth}{suffix}": value
                    for name, value in layer.state_dict().items()
                }
        library.load_state_dict(state)
        states, mask, _ = batch()
        for row, length in enumerate(LENGTHS):
            out = library(states[row : row + 1, :length])[0]
            expected = head.out(torch.cat([out[:, -1, :6], out[:, 0, 6:]], 1))[0]
            torch.testing.assert_close(head(states, mask, None)[row], expected)


@torch.inference_mode()
def test_a_text_shorter_than_every_filter_has_its_own_logits():
    head = head_of(Head.CNN)
    states, mask = torch.randn(2, 1, WIDTH), torch.ones(2, 1, dtype=torch.int64)
    first, second = head(states, mask, None)
    assert not torch.equal(first, second)


@torch.inference_mode()
@pytest.mark.parametrize("type_", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Head.LSTM, Head.GRU])
def test_a_recurrent_head_computes_in_float32_in_autocast(kind, type_):
    head = make_head(HeadSettings(head=kind, dropout=0), width=8, classes=3, cls_last=False)
    states_BTH = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).to(type_)
    mask_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    expected_BC = head(states_BTH.float(), mask_BT, None)
    with torch.autocast("cpu", torch.bfloat16):
        logits_BC = head(states_BTH, mask_BT, None)
    torch.testing.assert_close(logits_BC, expected_BC, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_the_entity_head_reads_the_entities_and_the_text_token():
    states, mask, spans = batch()
    row = 1  # nine tokens, entities at 1..4 and 5..8
    for cls_last, place in ((False, 0), (True, 8)):
        head = head_of(Head.ENTITY, cls_last=cls_last)
        before = head(states, mask, spans)[row]
        for token in range(9):
            changed = states.clone()
            changed[row, token] += 1
            seen = not torch.allclose(head(changed, mask, spans)[row], before)
            assert seen == (token in {1, 2, 3, 5, 6, 7, place}), token


def test_missing_entities_are_reported():
    states, mask, _ = batch()
    with pytest.raises(ConfigError, match="needs texts with marked entities"):
        head_of(Head.ENTITY)(states, mask, None)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.filterwarnings("ignore")
def test_a_head_can_be_exported_with_dynamic_batch_and_length(kind, bidirectional, tmp_path):
    head = head_of(kind, bidirectional=bidirectional)
    names = ["states", "mask", "spans"]
    torch.onnx.export(
        head,
        (batch()[0][:2, :4], batch()[1][:2, :4], batch()[2][:2]),
        tmp_path / "head.onnx",
        input_names=names,
        dynamic_axes={name: {0: "batch", 1: "length"} for name in names[:2]}
        | {"spans": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx")
    input_names = {node.name for node in session.get_inputs()}
    inputs = {
        name: tensor.numpy()
        for name, tensor in zip(names, batch(), strict=True)
        if name in input_names
    }
    (logits,) = session.run(None, inputs)
    with torch.inference_mode():
        np.testing.assert_allclose(logits, head(*batch()).numpy(), atol=1e-5)
