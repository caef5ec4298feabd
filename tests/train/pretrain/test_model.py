"""The model of pretraining: no attention across texts, logits where asked, saved and opened."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
)

from pipework.errors import ConfigError
from pipework.train.config.model import Family, ModelSettings, Preset
from pipework.train.model.classifier import unreached
from pipework.train.model.families import padding
from pipework.train.model.fast_dropout import quicken
from pipework.train.model.presets import size
from pipework.train.pretrain.model import ORDER, build_pretrainer, open_pretrainer

TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = 60


def tokenizer(count=VOCABULARY):
    words = [*TOKENS, *(f"w{number}" for number in range(count - len(TOKENS)))]
    spelled = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    spelled.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return spelled


def made(*, order=True, **settings):
    torch.manual_seed(0)
    given = ModelSettings(**({"preset": Preset.TINY, "max_length": 32} | settings))
    return build_pretrainer(given, tokenizer(), order=order)


def rows(seed=0):
    """Two rows of three texts each; the second row ends in padding."""
    random = np.random.default_rng(seed)
    ids_RT = random.integers(len(TOKENS), VOCABULARY, (2, 24))
    lengths = [[7, 9, 8], [5, 10, 4]]
    segments_RT = np.full((2, 24), -1)
    positions_RT = np.zeros((2, 24), np.int64)
    for row, some in enumerate(lengths):
        segments_RT[row, : sum(some)] = np.repeat(range(3), some)
        positions_RT[row, : sum(some)] = np.concatenate([np.arange(n) for n in some])
    ids_RT[segments_RT < 0] = 0
    named = {"input_ids": ids_RT, "position_ids": positions_RT, "segment_ids": segments_RT}
    return {name: torch.from_numpy(array) for name, array in named.items()}


def asked(packed):
    return packed | {
        "places": torch.tensor([2, 9, 30, 41]),
        "targets": torch.tensor([7, 8, 9, 10]),
        "pairs": torch.tensor([0, 24]),
        "swapped": torch.tensor([0, 1]),
    }


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("training", [False, True], ids=["library", "quick"])
def test_changing_one_text_leaves_the_states_of_the_others_untouched(family, training):
    model = made(family=family, dropout=0.0).train(training)
    if training:
        quicken(model.model)
    packed = rows()
    with torch.no_grad():
        before_RTH = model.states(**packed)
        here_RT = (packed["segment_ids"] == 1) & (torch.arange(2) == 0)[:, None]
        packed["input_ids"] = torch.where(
            here_RT, 5 + (packed["input_ids"] + 1) % 50, packed["input_ids"]
        )
        after_RTH = model.states(**packed)
    assert torch.equal(before_RTH[~here_RT], after_RTH[~here_RT])
    assert not torch.isclose(before_RTH[here_RT], after_RTH[here_RT]).all(dim=1).any()


@pytest.mark.parametrize("family", Family)
def test_a_packed_text_has_the_states_that_it_has_alone(family):
    model, packed = made(family=family).eval(), rows()
    with torch.no_grad():
        packed_RTH = model.states(**packed)
        for row in (0, 1):
            for segment in range(3):
                here_T = packed["segment_ids"][row] == segment
                alone = model.encoder(input_ids=packed["input_ids"][row][here_T][None])
                torch.testing.assert_close(
                    alone.last_hidden_state[0], packed_RTH[row][here_T], rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize("family", Family)
def test_only_hidden_tokens_are_told_and_as_the_whole_model_tells_them(family):
    model, packed = made(family=family, order=False).eval(), rows()
    places = torch.tensor([2, 6])
    with torch.no_grad():
        logits_MV, none = model.tell(places=places, pairs=torch.tensor([0]), **packed)
        whole = model.model(input_ids=packed["input_ids"][:1, :7]).logits[0]
    assert none is None
    torch.testing.assert_close(logits_MV, whole[places], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", Family)
def test_every_weight_learns_even_from_a_batch_without_pairs(family):
    model = made(family=family)
    inputs = asked(rows())
    inputs |= {
        "pairs": torch.empty(0, dtype=torch.int64),
        "swapped": torch.empty(0, dtype=torch.int64),
    }
    assert unreached(model, inputs) == []
    assert sum(len(layer) for layer in model.layers()) == len(list(model.parameters()))


def test_losses_are_sums_scaled():
    model, inputs = made().eval(), asked(rows())
    with torch.no_grad():
        plain_2 = model(**inputs)
        model.scales = (0.5, 0.25)
        assert torch.equal(model(**inputs), plain_2 * torch.tensor([0.5, 0.25]))
    assert plain_2[0] == pytest.approx(4 * np.log(VOCABULARY), rel=0.1)
    assert plain_2[1] == pytest.approx(2 * np.log(2), rel=0.1)


@pytest.mark.parametrize("family", Family)
def test_what_is_saved_is_opened_as_it_was(family, tmp_path):
    model, inputs = made(family=family).eval(), asked(rows())
    model.save(tmp_path)
    again = open_pretrainer(tmp_path)
    with torch.no_grad():
        assert torch.equal(model(**inputs), again(**inputs))
    assert (tmp_path / ORDER).is_file()
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight


@pytest.mark.parametrize("family", Family)
def test_embeddings_of_ngrams_are_pretrained_saved_and_opened(family, tmp_path):
    model, inputs = made(family=family, ngrams=64).eval(), asked(rows())
    table = model.encoder.get_input_embeddings().ngrams
    torch.nn.init.normal_(table.weight)
    assert unreached(model, inputs) == []
    model.save(tmp_path)
    with torch.no_grad():
        expected = model(**inputs)
        assert torch.equal(open_pretrainer(tmp_path)(**inputs), expected)
        assert torch.equal(made(preset=None, name=str(tmp_path)).eval()(**inputs), expected)


@pytest.mark.parametrize("family", Family)
def test_a_classifier_takes_over_the_encoder_and_its_pooler(family, tmp_path):
    model = made(family=family)
    model.save(tmp_path)
    taken = AutoModelForSequenceClassification.from_pretrained(tmp_path).base_model.state_dict()
    own = model.encoder.state_dict()
    assert taken.keys() == own.keys()
    assert any("pooler" in name for name in own)
    assert all(torch.equal(own[name], taken[name]) for name in own)


def test_a_checkpoint_without_a_head_gets_one_tied_to_its_embeddings(tmp_path):
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    base = BertModel(config)
    base.save_pretrained(tmp_path)
    model = made(preset=None, name=str(tmp_path))
    assert torch.equal(model.encoder.pooler.dense.weight, base.pooler.dense.weight)
    embedded = model.model.get_input_embeddings().weight
    assert model.model.get_output_embeddings().weight is embedded
    assert torch.equal(embedded, base.get_input_embeddings().weight)


def test_going_on_keeps_the_head_that_tells_the_order(tmp_path):
    first = made()
    first.save(tmp_path)
    again = made(preset=None, name=str(tmp_path))
    assert torch.equal(first.order.weight, again.order.weight)


def test_a_family_that_cannot_read_packed_rows_is_refused(tmp_path):
    config = DebertaV2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    DebertaV2Model(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"deberta-v2 cannot read packed rows") as caught:
        made(preset=None, name=str(tmp_path))
    assert "pretrain another model" in caught.value.hint


def test_too_long_for_the_positions_is_refused(tmp_path):
    made(max_length=8).save(tmp_path)
    with pytest.raises(ConfigError, match=r"max_length 9: .* has 8 positions"):
        made(preset=None, name=str(tmp_path), max_length=9)


@pytest.mark.parametrize("preset", [Preset.TINY, Preset.MINI, Preset.SMALL, Preset.MEDIUM])
def test_albert_has_one_layer_for_all_and_embeds_narrowly(preset):
    layers, width = size(preset)
    bert, albert = (
        made(preset=preset, family=family, order=False).encoder
        for family in (Family.BERT, Family.ALBERT)
    )
    one = sum(p.numel() for p in bert.encoder.layer[0].parameters())
    shared = sum(p.numel() for p in albert.encoder.albert_layer_groups.parameters())
    assert shared == one
    assert sum(p.numel() for p in bert.encoder.parameters()) == layers * one
    assert albert.embeddings.word_embeddings.weight.shape == (VOCABULARY, 128)
    assert bert.embeddings.word_embeddings.weight.shape == (VOCABULARY, width)
    assert padding(albert) == padding(bert)


def test_albert_base_has_the_parameters_of_its_paper():
    """Lan et al. 2020, table 1: BERT-base has 108 million parameters, ALBERT-base 12."""
    given = [ModelSettings(preset=Preset.BASE, family=family, max_length=512) for family in Family]
    with torch.device("meta"):
        bert, albert = (
            sum(
                p.numel()
                for p in build_pretrainer(one, tokenizer(30_000), order=False).parameters()
            )
            for one in given
        )
    assert round(bert / 1e6) in (108, 109, 110)
    assert round(albert / 1e6) in (11, 12)
