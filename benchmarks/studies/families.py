"""Every family with every head learns 64 rows: `python -m pipework.benchmarks.studies.families --out FILE`.

The encoders are tiny, with random weights: the question is whether the parts fit together and
learn, not how well they read. Texts come from the sample; for the entity head, marks are put
around the first and the last word of each.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedTokenizerFast

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.recorded_command import command
from pipework.benchmarks.studies.training_results import FamiliesResult, Fit
from pipework.data.examples import Example, Source
from pipework.data.readers import Columns
from pipework.errors import CheckFailedError, PipeError
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import evaluate, truth
from pipework.text.encoding import Encoding, TextEncoder
from pipework.train.config.model import CnnSettings, Head, ModelSettings, Preset, RnnSettings
from pipework.train.config.run_config import SAMPLE
from pipework.train.config.train import TrainSettings
from pipework.train.data.labels import class_labels
from pipework.train.data.tokenizer import learn
from pipework.train.loop.optim import make_optimizer, parameter_groups
from pipework.train.model.checkpoint_engine import CheckpointEngine, model_inputs
from pipework.train.model.classifier import Classifier, build, padding_of

ROWS, BATCH, STEPS, WIDTH, LENGTH = 64, 16, 200, 32, 40
RATE, ENOUGH, EVERY = 3e-3, 0.97, 10
SPREAD = 0.1  # of the first weights: at the published 0.02 a width of 32 starts too near zero
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout"),
)
SPECIAL_IDS = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}


class Family(StrEnum):
    """The families of the table, by the names that transformers gives them."""

    BERT = "bert"
    ALBERT = "albert"
    ROBERTA = "roberta"
    DISTILBERT = "distilbert"
    ELECTRA = "electra"
    XLNET = "xlnet"
    MODERNBERT = "modernbert"
    DEBERTA = "deberta-v2"
    MPNET = "mpnet"
    CAMEMBERT = "camembert"
    XLM_ROBERTA = "xlm-roberta"
    REMBERT = "rembert"


def tiny(family: Family, vocab_size: int) -> PreTrainedConfig:
    """Return a config of two layers and a width of 32, without dropout."""
    config = AutoConfig.for_model(
        family, vocab_size=vocab_size, initializer_range=SPREAD, **(SPECIAL_IDS | _sizes(family))
    )
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def _sizes(family: Family) -> dict[str, object]:
    """Return sizes by the family's own names, and what its published models have."""
    if family is Family.DISTILBERT:
        return {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * WIDTH}
    if family is Family.XLNET:
        return {"d_model": WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 2 * WIDTH}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2}
    width: dict[str, object] = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **depth}
    own: dict[Family, dict[str, object]] = {
        Family.ALBERT: {"embedding_size": WIDTH // 2},
        Family.ELECTRA: {"embedding_size": WIDTH // 2},
        Family.REMBERT: {"input_embedding_size": WIDTH // 2, "output_embedding_size": WIDTH // 2},
        Family.ROBERTA: {"type_vocab_size": 1},
        Family.CAMEMBERT: {"type_vocab_size": 1},
        Family.XLM_ROBERTA: {"type_vocab_size": 1},
        Family.MPNET: {"pad_token_id": 1},
        Family.MODERNBERT: {"local_attention": 32},  # less than the longest texts have
        Family.DEBERTA: {  # version 3
            "relative_attention": True,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "position_biased_input": False,
        },
    }
    return width | own.get(family, {})


def tokenizer_for(family: Family, texts: Sequence[str]) -> Tokenizer:
    """Learn a vocabulary; the special tokens stand where the family has them."""
    settings = ModelSettings(preset=Preset.TINY, vocab_size=400)
    tokenizer = learn(settings, lambda: texts)
    if family is Family.MPNET:  # its code takes 1 for padding, whatever its config says
        tokenizer = _exchanged(tokenizer, "[PAD]", "[UNK]")
    if family is Family.XLNET:
        ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=ends
        )
    return tokenizer


def _exchanged(tokenizer: Tokenizer, one: str, other: str) -> Tokenizer:
    """Return a tokenizer in which two special tokens have each other's ids."""
    kept = json.loads(tokenizer.to_str())
    vocab = kept["model"]["vocab"]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    for token in kept["added_tokens"]:
        token["id"] = vocab[token["content"]]
    return Tokenizer.from_str(json.dumps(kept))


def publish(family: Family, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an encoder with random weights and its tokenizer as model hubs have them."""
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny(family, tokenizer.get_vocab_size()))
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")  # noqa: S106
    wrapped.save_pretrained(folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What is to be learned: 64 inputs of the sample, their truth and the task."""

    tokenizer: Tokenizer
    examples: list[Example]
    task: Task

    @classmethod
    def of(cls, family: Family) -> "Rows":
        """Take rows of every topic."""
        source = Source(path=SAMPLE / "train.tsv", columns=Columns())
        examples = list(source.rows())[:ROWS]
        labels = class_labels(None, source)
        tokenizer = tokenizer_for(family, [example.text for example in examples])
        task = Task(kind=TaskKind.SINGLE_LABEL, labels=labels, metric=Metric.ACCURACY)
        return cls(tokenizer=tokenizer, examples=examples, task=task)

    def encodings(self, *, type_ids: bool, marked: bool) -> list[Encoding]:
        """Encode the rows; with `marked` the halves of a text stand for its two entities."""
        encoder = TextEncoder(self.tokenizer, max_length=LENGTH, type_ids=type_ids)
        found = encoder.encode(self.examples)
        if not marked:
            return found
        return [
            Encoding(
                ids=one.ids,
                type_ids=one.type_ids,
                entity_spans=((1, len(one) // 2), (len(one) // 2, len(one) - 1)),
            )
            for one in found
        ]


def open_tiny(rows: Rows, folder: Path, head: Head) -> Classifier:
    """Build a classifier from a published encoder, as a run does."""
    settings = ModelSettings(
        name=str(folder),
        head=head,
        dropout=0.0,
        max_length=LENGTH,
        cnn=CnnSettings(filters=16),
        rnn=RnnSettings(hidden=16),
    )
    torch.manual_seed(0)
    return build(settings, rows.tokenizer, rows.task)


def optimizer_of(classifier: Classifier, rate: float) -> torch.optim.Optimizer:
    """Return the optimizer of a run, at one rate and without decay."""
    settings = TrainSettings(learning_rate=rate, weight_decay=0.0)
    groups = parameter_groups(classifier, classifier.layers(), settings)
    return make_optimizer(groups, settings)


def steps_to_fit(classifier: Classifier, rows: Rows) -> int | None:
    """Train until the rows are answered rightly; return the steps, or None beyond the budget."""
    encodings = rows.encodings(
        type_ids=padding_of(classifier).type_ids, marked=classifier.settings.head is Head.ENTITY
    )
    truth_N = truth(rows.examples, rows.task, "the sample")
    target_N = torch.from_numpy(truth_N).long()
    padding = padding_of(classifier)
    optimizer = optimizer_of(classifier, RATE)
    random = torch.Generator().manual_seed(0)
    with CheckpointEngine(classifier, padding=padding) as engine:
        for step in range(1, STEPS + 1):
            batch_B = torch.randperm(len(encodings), generator=random)[:BATCH]
            given = [encodings[int(row)] for row in batch_B]
            classifier.train()
            logits_BC = classifier(**model_inputs(given, padding, classifier.device))
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(logits_BC, target_N[batch_B])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % EVERY == 0:
                found = evaluate(engine.infer(encodings), truth_N, rows.task)
                if found.score >= ENOUGH:
                    return step
    return None


def measure(family: Family, heads: Sequence[Head]) -> list[Fit]:
    """Train one family with some heads."""
    rows = Rows.of(family)
    with tempfile.TemporaryDirectory(prefix="pipework-families-") as name:
        publish(family, rows.tokenizer, Path(name))
        return [
            Fit(
                family=family,
                head=head,
                steps=steps_to_fit(open_tiny(rows, Path(name), head), rows),
            )
            for head in heads
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every combination and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.families", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    given = parser.parse_args(arguments)
    out = given.out
    try:
        check_writable(out)
        fits: list[Fit] = []
        for family in Family:
            fits += measure(family, list(Head))
            sys.stdout.write(f"{family}: {[fit.steps for fit in fits if fit.family == family]}\n")
        result = FamiliesResult(
            rows=ROWS,
            fits=tuple(fits),
            command=command(parser, given),
            provenance=provenance(),
        )
        write_result(out, result)
        _check(fits)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    return 0


def _check(fits: Sequence[Fit]) -> None:
    failed = [f"{fit.family} with {fit.head}" for fit in fits if fit.steps is None]
    if failed:
        message = f"not learned within {STEPS} steps: {', '.join(failed)}"
        raise CheckFailedError(message, "look at the family's padding, types and head")


if __name__ == "__main__":
    sys.exit(main())
