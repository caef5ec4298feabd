"""The pretraining model: no attention across texts, logits of masked tokens, save and open."""

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
from pipework.train.config.model import ModelSettings, Preset, PresetFamily
from pipework.train.model.classifier import unused_parameters
from pipework.train.model.encoder_configs import PRESETS
from pipework.train.model.families import padding
from pipework.train.model.fast_dropout import use_fast_dropout
from pipework.train.pretrain.model import ORDER, build_pretrain_model, open_pretrain_model

TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = 60


def tokenizer(count=VOCABULARY):
    words = [*TOKENS, *(f"w{number}" for number in range(count - len(TOKENS)))]
    word_tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    word_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return word_tokenizer


def build_small(*, order=True, **settings):
    torch.manual_seed(0)
    given = ModelSettings(**({"preset": Preset.TINY, "max_length": 32} | settings))
    return build_pretrain_model(given, tokenizer(), order=order)


def rows(seed=0):
    """Two rows of three texts each; the second row ends with padding."""
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


def with_targets(packed):
    return packed | {
        "places": torch.tensor([2, 9, 30, 41]),
        "targets": torch.tensor([7, 8, 9, 10]),
        "pairs": torch.tensor([0, 24]),
        "swapped": torch.tensor([0, 1]),
    }


@pytest.mark.parametrize("family", PresetFamily)
@pytest.mark.parametrize("training", [False, True], ids=["library", "quick"])
def test_texts_of_a_row_do_not_affect_each_other(family, training):
    model = build_small(family=family, dropout=0.0).train(training)
    if training:
        use_fast_dropout(model.model)
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


@pytest.mark.parametrize("family", PresetFamily)
def test_a_packed_text_has_the_same_states_as_alone(family):
    model, packed = build_small(family=family).eval(), rows()
    with torch.no_grad():
        packed_RTH = model.states(**packed)
        for row in (0, 1):
            for segment in range(3):
                here_T = packed["segment_ids"][row] == segment
                alone = model.encoder(input_ids=packed["input_ids"][row][here_T][None])
                torch.testing.assert_close(
                    alone.last_hidden_state[0], packed_RTH[row][here_T], rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize("family", PresetFamily)
def test_logits_of_masked_tokens_equal_those_of_the_full_model(family):
    model, packed = build_small(family=family, order=False).eval(), rows()
    places = torch.tensor([2, 6])
    with torch.no_grad():
        logits_MV, none = model.predict(places=places, pairs=torch.tensor([0]), **packed)
        whole = model.model(input_ids=packed["input_ids"][:1, :7]).logits[0]
    assert none is None
    torch.testing.assert_close(logits_MV, whole[places], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", PresetFamily)
def test_every_weight_has_a_gradient_even_without_pairs(family):
    model = build_small(family=family)
    inputs = with_targets(rows())
    inputs |= {
        "pairs": torch.empty(0, dtype=torch.int64),
        "swapped": torch.empty(0, dtype=torch.int64),
    }
    assert unused_parameters(model, inputs) == []
    assert sum(len(layer) for layer in model.layers()) == len(list(model.parameters()))


def test_losses_are_scaled_sums():
    model, inputs = build_small().eval(), with_targets(rows())
    with torch.no_grad():
        plain_2 = model(**inputs)
        model.scales = (0.5, 0.25)
        assert torch.equal(model(**inputs), plain_2 * torch.tensor([0.5, 0.25]))
    assert plain_2[0] == pytest.approx(4 * np.log(VOCABULARY), rel=0.1)
    assert plain_2[1] == pytest.approx(2 * np.log(2), rel=0.1)


@pytest.mark.parametrize("family", PresetFamily)
def test_a_saved_model_computes_the_same_losses(family, tmp_path):
    model, inputs = build_small(family=family).eval(), with_targets(rows())
    model.save(tmp_path)
    again = open_pretrain_model(tmp_path)
    with torch.no_grad():
        assert torch.equal(model(**inputs), again(**inputs))
    assert (tmp_path / ORDER).is_file()
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight


@pytest.mark.parametrize("family", PresetFamily)
def test_ngram_embeddings_are_pretrained_saved_and_opened(family, tmp_path):
    model, inputs = build_small(family=family, ngrams=64).eval(), with_targets(rows())
    table = model.encoder.get_input_embeddings().ngrams
    torch.nn.init.normal_(table.weight)
    assert unused_parameters(model, inputs) == []
    model.save(tmp_path)
    with torch.no_grad():
        expected = model(**inputs)
        assert torch.equal(open_pretrain_model(tmp_path)(**inputs), expected)
        assert torch.equal(build_small(preset=None, name=str(tmp_path)).eval()(**inputs), expected)


@pytest.mark.parametrize("family", PresetFamily)
def test_a_classifier_loads_the_encoder_and_its_pooler(family, tmp_path):
    model = build_small(family=family)
    model.save(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).base_model.state_dict()
    own = model.encoder.state_dict()
    assert loaded.keys() == own.keys()
    assert any("pooler" in name for name in own)
    assert all(torch.equal(own[name], loaded[name]) for name in own)


def test_a_checkpoint_without_a_head_gets_a_head_tied_to_its_embeddings(tmp_path):
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
    model = build_small(preset=None, name=str(tmp_path))
    assert torch.equal(model.encoder.pooler.dense.weight, base.pooler.dense.weight)
    embedded = model.model.get_input_embeddings().weight
    assert model.model.get_output_embeddings().weight is embedded
    assert torch.equal(embedded, base.get_input_embeddings().weight)


def test_further_pretraining_keeps_the_order_head(tmp_path):
    first = build_small()
    first.save(tmp_path)
    again = build_small(preset=None, name=str(tmp_path))
    assert torch.equal(first.order.weight, again.order.weight)


def test_a_family_without_packed_rows_is_refused(tmp_path):
    config = DebertaV2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    DebertaV2Model(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"deberta-v2 does not support packed rows") as caught:
        build_small(preset=None, name=str(tmp_path))
    assert "pretrain another model" in caught.value.hint


def test_a_length_above_the_positions_is_refused(tmp_path):
    build_small(max_length=8).save(tmp_path)
    with pytest.raises(ConfigError, match=r"max_length 9: .* has 8 positions"):
        build_small(preset=None, name=str(tmp_path), max_length=9)


@pytest.mark.parametrize("preset", [Preset.TINY, Preset.MINI, Preset.SMALL, Preset.MEDIUM])
def test_albert_shares_its_layers_and_has_narrow_embeddings(preset):
    layers, width = PRESETS[preset]
    bert, albert = (
        build_small(preset=preset, family=family, order=False).encoder
        for family in (PresetFamily.BERT, PresetFamily.ALBERT)
    )
    layer_size = sum(p.numel() for p in bert.encoder.layer[0].parameters())
    shared = sum(p.numel() for p in albert.encoder.albert_layer_groups.parameters())
    assert shared == layer_size
    assert sum(p.numel() for p in bert.encoder.parameters()) == layers * layer_size
    assert albert.embeddings.word_embeddings.weight.shape == (VOCABULARY, 128)
    assert bert.embeddings.word_embeddings.weight.shape == (VOCABULARY, width)
    assert padding(albert) == padding(bert)


def test_albert_base_has_the_parameters_of_its_paper():
    """Lan et al. 2020, table 1: BERT-base has 108 million parameters, ALBERT-base 12."""
    given = [
        ModelSettings(preset=Preset.BASE, family=family, max_length=512) for family in PresetFamily
    ]
    with torch.device("meta"):
        bert, albert = (
            sum(
                p.numel()
                for p in build_pretrain_model(
                    model_settings, tokenizer(30_000), order=False
                ).parameters()
            )
            for model_settings in given
        )
    assert round(bert / 1e6) in (108, 109, 110)
    assert round(albert / 1e6) in (11, 12)
