"""Converts the variables of TensorFlow 1 to the weights of transformers.

Supported are Google's BERT and ALBERT, and albert_zh. The names of their variables are those in
`modeling.py` of google-research/bert, google-research/albert and brightmart/albert_zh.

Shapes: V ids of the vocabulary, E width of its embeddings, H width of the encoder.
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from pipework.errors import ConfigError
from pipework.train.data.foreign_files import TORCH_WEIGHTS
from pipework.train.model.tensor_bundle import StoredVariable, read_index

INDEX = "*.ckpt*.index"
LATEST = re.compile(r'^model_checkpoint_path: "(?:.*/)?(.*)"', re.MULTILINE)
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The state of optimizers and of training loops.
TRAINING_STATE = re.compile(
    r"(^|/)(adam_[mv]|Adam(_1)?|(AdamWeightDecay|LAMB)Optimizer(_1)?|beta[12]_power|global_step)$"
)
# Variables of heads, which a model without this head does not load.
HEADS = re.compile(r"(cls|bert/pooler|output_weights|output_bias)(/|$)")
LABELS = "output_bias"
WORDS = "albert.embeddings.word_embeddings.weight"
PROJECTION = "albert.embeddings.word_embeddings_2"  # of albert_zh, [E, H]
MAPPING = "albert.encoder.embedding_hidden_mapping_in"
# Patterns of names and their replacements; all that match are applied, in this order.
Rules = tuple[tuple[str, str], ...]
BERT: Rules = (
    (r"^output_", "classifier/"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"^cls/seq_relationship/output_", "cls/seq_relationship/"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
)
ALBERT: Rules = (
    (r"^output_", "classifier/"),
    (r"^cls/predictions/(transform/|output_)", "predictions/"),
    (r"^cls/seq_relationship/output_", "sop_classifier/classifier/"),
    (r"^bert/pooler/dense", "bert/pooler"),
    (r"/transformer/group_(\d+)/inner_group_(\d+)/", r"/albert_layer_groups/\1/albert_layers/\2/"),
    (r"/layer_shared/", "/albert_layer_groups/0/albert_layers/0/"),  # of albert_zh
    (r"(/albert_layers/\d+)/LayerNorm/", r"\1/attention/LayerNorm/"),
    (r"/attention(_1)?/(self|output)/", "/attention/"),
    (r"/(output/LayerNorm|LayerNorm_1)/", "/full_layer_layer_norm/"),
    (r"/(ffn_1/intermediate/)?output/dense/", "/ffn_output/"),
    (r"/(ffn_1/)?intermediate/dense/", "/ffn/"),
    (r"^bert/", "albert/"),
)
PARAMETERS: Rules = (
    (r"(?<=_embeddings)$", "/weight"),
    (r"/(kernel|gamma|weights)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"/", "."),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvertedWeights:
    """The weights of a checkpoint, in float32, and the config that they need.

    Attributes:
        config: the config of the checkpoint, changed where TensorFlow computes another function.
        weights: the weights by their names in transformers.
        variables: the names of the variables by the names of the weights.
    """

    config: PreTrainedConfig
    weights: dict[str, torch.Tensor]
    variables: dict[str, str]

    def unmatched(self, unexpected: set[str]) -> list[str]:
        """Return the variables of unexpected weights, without heads."""
        names = sorted(self.variables[name] for name in unexpected)
        return [name for name in names if not HEADS.match(name)]


def find_index(name: str) -> Path | None:
    """Return the index of the TensorFlow checkpoint in a folder; None for other checkpoints.

    Raises:
        ConfigError: there are several, and no file `checkpoint` names the latest.
    """
    folder = Path(name)
    paths = sorted(folder.glob(INDEX))
    if not paths or any(path for suffix in TORCH_WEIGHTS for path in folder.glob(suffix)):
        return None
    if len(paths) == 1:
        return paths[0]
    state = folder / "checkpoint"
    latest = LATEST.search(state.read_text("utf-8", "replace")) if state.is_file() else None
    found = [path for path in paths if latest is not None and path.stem == latest[1]]
    if not found:
        names = ", ".join(path.stem for path in paths)
        message = f"checkpoint {name!r}: expected one TensorFlow checkpoint, found {names}"
        raise ConfigError(
            message, "remove the others, or add the file `checkpoint` of tf.train.Saver"
        )
    return found[0]


def label_count(index: Path) -> int | None:
    """Return the number of labels of the classifier in a checkpoint; None without a classifier.

    Raises:
        ConfigError: the index cannot be read.
    """
    shapes = {variable.name: variable.shape for variable in read_index(index)}
    return shapes[LABELS][0] if shapes.get(LABELS) else None


def convert(index: Path, config: PreTrainedConfig) -> ConvertedWeights:
    """Read the variables of a checkpoint, without the state of the training.

    Raises:
        ConfigError: the checkpoint cannot be read, or is of another family or version.
    """
    if config.model_type not in ("bert", "albert"):
        message = f"{index} is a TensorFlow checkpoint of the family {config.model_type}"
        raise ConfigError(
            message, "expected bert or albert: convert others with transformers first"
        )
    stored = [entry for entry in read_index(index) if not TRAINING_STATE.search(entry.name)]
    if any(entry.name == OBJECT_GRAPH for entry in stored):
        message = f"{index} is a checkpoint of TensorFlow 2, expected the variables of TensorFlow 1"
        raise ConfigError(message, "convert it with transformers first")
    names = {_weight_name(entry.name, config.model_type): entry for entry in stored}
    weights = {name: _read(entry) for name, entry in names.items()}
    variables = {name: entry.name for name, entry in names.items()}
    config = copy.deepcopy(config)
    if config.model_type == "albert":
        _convert_albert(config, weights)
    return ConvertedWeights(config=config, weights=weights, variables=variables)


def _weight_name(variable: str, family: str) -> str:
    for pattern, replacement in (*(ALBERT if family == "albert" else BERT), *PARAMETERS):
        variable = re.sub(pattern, replacement, variable)
    return variable


def _read(variable: StoredVariable) -> torch.Tensor:
    values = variable.read()
    return values.T.contiguous() if variable.name.endswith("/kernel") else values


def _convert_albert(config: PreTrainedConfig, weights: dict[str, torch.Tensor]) -> None:
    """Change config and weights to an ALBERT of transformers with the same hidden states."""
    if config.hidden_act == "gelu":
        config.hidden_act = "gelu_new"  # the code of all ALBERT releases approximates it by tanh
    projection_EH = weights.pop(PROJECTION, None)
    if projection_EH is not None and WORDS in weights:
        # albert_zh adds positions and types, and normalises, after the projection to H.
        weights[WORDS] = weights[WORDS] @ projection_EH
        config.embedding_size = config.hidden_size
    if config.embedding_size == config.hidden_size and f"{MAPPING}.weight" not in weights:
        weights[f"{MAPPING}.weight"] = torch.eye(config.hidden_size)
        weights[f"{MAPPING}.bias"] = torch.zeros(config.hidden_size)
