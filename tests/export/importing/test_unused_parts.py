"""What transformers ignores in a source is an error: its comparison with itself cannot show it."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands import pipe
from tests.export.importing.conftest import edit_json

DISTANCES = (
    "encoder.layer.*.attention.self.distance_embedding, "
    "position_embedding_type='relative_key_query'"
)


@pytest.fixture
def source(classifier_folder, tmp_path):
    return shutil.copytree(classifier_folder, tmp_path / "source")


def add_weights(folder, *names):
    weights = load_file(folder / "model.safetensors")
    weights |= {name: torch.ones(2) for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def relative_positions(folder):
    """Store what transformers 4 stores for a BERT with relative_key_query."""
    parts = (f"bert.encoder.layer.{n}.attention.self.distance_embedding.weight" for n in (0, 1))
    add_weights(folder, *parts)
    edit_json(folder / "config.json", position_embedding_type="relative_key_query")


def more_layers(folder):
    add_weights(folder, "encoder.layer.2.output.dense.weight")  # as an encoder without a head


def another_activation(folder):
    edit_json(folder / "config.json", ffn_act_fn="relu")


@pytest.mark.parametrize(
    ("fault", "named", "option"),
    [
        (
            relative_positions,
            DISTANCES,
            "--allow-unused distance_embedding --allow-unused position_embedding_type",
        ),
        (more_layers, "encoder.layer.2", "--allow-unused encoder.layer.2"),
        (another_activation, "ffn_act_fn='relu'", "--allow-unused ffn_act_fn"),
    ],
)
def test_an_ignored_part_of_the_encoder_is_refused_unless_it_is_named(
    source, tmp_path, fault, named, option
):
    fault(source)
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert f"does not use: {named}\n" in done.stderr
    assert option in done.stderr
    done = pipe("import", source, "--out", tmp_path / "run", *option.split())
    assert done.returncode == 0, done.stderr


def test_what_changes_no_prediction_is_not_refused(source, tmp_path):
    names = ("cls.predictions.bias", "bert.pooler.gate", "bert.embeddings.position_ids")
    add_weights(source, *names)
    edit_json(
        source / "config.json",
        position_embedding_type="absolute",
        pooler_num_attention_heads=12,
        pruned_heads={},
        directionality="bidi",
        gradient_checkpointing=True,
        _attn_implementation_autoset=True,
    )
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "finding: weights of the source that the model does not use: bert.pooler" in done.stdout
