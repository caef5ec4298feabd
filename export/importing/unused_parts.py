"""Find weights and config keys of a source that this version of transformers ignores.

A model without a part of its encoder loads without an error and answers wrongly, and a comparison
with the same version of transformers does not show it.
"""

import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedModel

from pipework.errors import ConfigError
from pipework.export.importing.adapters import read_json
from pipework.train.model.encoder_configs import BRIGHTMART, FIXED, GOOGLE, UNUSED
from pipework.train.model.pretrained import listing

# Keys that no longer exist are recognised by these words in their names.
ARCHITECTURE = re.compile(
    "position|rotary|rope|relative|alibi|attention|attn|norm|activation|act_fn|hidden_act|bias|"
    "residual|window|causal|is_decoder|pruned|scale"
)
TRAINING = re.compile("^_|dropout|implementation|output_attentions|initializer")
# Values that mean what the families compute.
USUAL: dict[str, object] = {**FIXED, **GOOGLE, **BRIGHTMART, "position_embedding_type": "absolute"}


def check_unused(
    name: str,
    model: PreTrainedModel,
    loading: Mapping[str, Any],
    allowed: Collection[str] = (),
    ignored: str = "",
) -> tuple[str, ...]:
    """Return a finding about stored weights that match nothing in the model; empty if all match.

    Args:
        name: the folder or hub id.
        model: the opened model.
        loading: `unexpected_keys` as transformers reports them.
        allowed: config keys, and parts of the names of weights, that may be unused.
        ignored: the start of the names that are known to be unused, or "".

    Raises:
        ConfigError: weights of the encoder are not used, or a config key that changes it.
    """
    buffers = {buffer for buffer, _ in model.named_buffers()}  # older versions stored them
    names = sorted({*loading.get("unexpected_keys", ())} - buffers)
    names = [weight for weight in names if not (ignored and weight.startswith(ignored))]
    parts = dict.fromkeys(filter(None, (_unknown_module(model, weight) for weight in names)))
    unused = {part: re.sub(r"\.\d+\.", ".*.", part) for part in parts}
    unused |= {key: f"{key}={value!r}" for key, value in _unread_keys(name, model)}
    refused = {part: text for part, text in unused.items() if not _is_allowed(part, allowed)}
    if refused:
        version = f"transformers {transformers.__version__}"
        found = listing([*dict.fromkeys(refused.values())])
        message = f"{name!r} has parts of an encoder that {version} does not use: {found}"
        options = (f"--allow-unused {option}" for option in dict.fromkeys(map(_short, refused)))
        hint = f"its predictions would change; to import it all the same: {' '.join(options)}"
        raise ConfigError(message, hint)
    return (f"weights of the source that the model does not use: {listing(names)}",) * bool(names)


def _is_allowed(part: str, allowed: Collection[str]) -> bool:
    return not {part, *part.split(".")}.isdisjoint(allowed)


def _short(part: str) -> str:
    """Return the last name of a module, or the whole path if that is a number."""
    last = part.rpartition(".")[2]
    return part if last.isdecimal() else last


def _unknown_module(model: PreTrainedModel, weight: str) -> str:
    """Return the first part of the path of an encoder weight that the encoder lacks, or ""."""
    prefix, path = model.base_model_prefix, weight.split(".")
    inside = path[path.index(prefix) + 1 :] if prefix in path else path
    module: nn.Module | None = model.base_model
    if "pooler" in inside or not (prefix in path or hasattr(module, inside[0])):
        return ""  # of a head
    for length, part in enumerate(inside, start=1):
        module = getattr(module, part, None)
        if module is None:
            return ".".join(inside[:length])
    return weight


def _unread_keys(name: str, model: PreTrainedModel) -> Iterator[tuple[str, object]]:
    """Yield the config keys of the architecture that the code of the family does not mention."""
    modules = {kind.__module__ for top in (model, model.config) for kind in type(top).__mro__}
    own = [module for module in modules if ".models." in module]
    source = "".join(inspect.getsource(sys.modules[module]) for module in own)
    for key, value in read_json(name, "config.json").items():
        usual = not value or key in UNUSED or (key in USUAL and value == USUAL[key])
        if usual or TRAINING.search(key) or not ARCHITECTURE.search(key):
            continue
        if not re.search(rf"\b{re.escape(key)}\b", source):
            yield key, value
