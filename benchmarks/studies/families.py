"""Train every family with every head on 64 rows: `python -m pipework.benchmarks.studies.families`.

The encoders are tiny and have random weights: the study tests whether family and head can be
trained together, not their quality. The texts are those of the sample; for the entity head, the two
halves of each text are marked as entities.
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
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.records.training_results import FamiliesResult, Fit
from pipework.benchmarks.studies.script import command, report_errors
from pipework.data.examples import Example, Source
from pipework.data.readers import Columns
from pipework.errors import CheckFailedError
from pipework.run_folder.files import check_writable
from pipework.scoring.evaluation import label_array
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.text.encoding import Encoding, TextEncoder
from pipework.train.config.model import CnnSettings, Head, ModelSettings, Preset, RnnSettings
from pipework.train.config.run_config import SAMPLE
from pipework.train.config.train import TrainSettings
from pipework.train.data.labels import class_labels
from pipework.train.data.tokenizer import learn_wordpiece
from pipework.train.loop.optim import make_optimizer, parameter_groups
from pipework.train.model.checkpoint_engine import CheckpointEngine, model_inputs
from pipework.train.model.classifier import Classifier, build, padding_of

ROWS, BATCH, STEPS, WIDTH, LENGTH = 64, 16, 200, 32, 40
RATE, ENOUGH, EVERY = 3e-3, 0.97, 10
INIT_STD = 0.1  # with the usual 0.02 a width of 32 starts too close to zero
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


class EncoderFamily(StrEnum):
    """The families of the table by their `model_type` in transformers."""

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


def tiny(family: EncoderFamily, vocab_size: int) -> PreTrainedConfig:
    """Return a config with two layers, width 32 and no dropout."""
    config = AutoConfig.for_model(
        family, vocab_size=vocab_size, initializer_range=INIT_STD, **(SPECIAL_IDS | _sizes(family))
    )
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def _sizes(family: EncoderFamily) -> dict[str, object]:
    """Return sizes under the family's option names, and options of its published models."""
    if family is EncoderFamily.DISTILBERT:
        return {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * WIDTH}
    if family is EncoderFamily.XLNET:
        return {"d_model": WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 2 * WIDTH}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2}
    width: dict[str, object] = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **depth}
    own: dict[EncoderFamily, dict[str, object]] = {
        EncoderFamily.ALBERT: {"embedding_size": WIDTH // 2},
        EncoderFamily.ELECTRA: {"embedding_size": WIDTH // 2},
        EncoderFamily.REMBERT: {
            "input_embedding_size": WIDTH // 2,
            "output_embedding_size": WIDTH // 2,
        },
        EncoderFamily.ROBERTA: {"type_vocab_size": 1},
        EncoderFamily.CAMEMBERT: {"type_vocab_size": 1},
        EncoderFamily.XLM_ROBERTA: {"type_vocab_size": 1},
        EncoderFamily.MPNET: {"pad_token_id": 1},
        EncoderFamily.MODERNBERT: {"local_attention": 32},  # fewer tokens than the longest texts
        EncoderFamily.DEBERTA: {  # version 3
            "relative_attention": True,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "position_biased_input": False,
        },
    }
    return width | own.get(family, {})


def tokenizer_for(family: EncoderFamily, texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer trained on texts, with special tokens in the family's positions."""
    settings = ModelSettings(preset=Preset.TINY, vocab_size=400)
    tokenizer = learn_wordpiece(settings, lambda: texts)
    if family is EncoderFamily.MPNET:  # its code uses padding id 1 regardless of the config
        tokenizer = _swap_ids(tokenizer, "[PAD]", "[UNK]")
    if family is EncoderFamily.XLNET:
        ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=ends
        )
    return tokenizer


def _swap_ids(tokenizer: Tokenizer, first: str, second: str) -> Tokenizer:
    """Return a tokenizer in which the ids of two special tokens are swapped."""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    for token in state["added_tokens"]:
        token["id"] = vocab[token["content"]]
    return Tokenizer.from_str(json.dumps(state))


def publish(family: EncoderFamily, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an encoder with random weights and its tokenizer in the layout of model hubs."""
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny(family, tokenizer.get_vocab_size()))
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")  # noqa: S106
    wrapped.save_pretrained(folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRows:
    """The training data: 64 rows of the sample, their tokenizer and the task."""

    tokenizer: Tokenizer
    examples: list[Example]
    task: Task

    @classmethod
    def of(cls, family: EncoderFamily) -> "SampleRows":
        """Return the first rows of the sample, which include every topic."""
        source = Source(path=SAMPLE / "train.tsv", columns=Columns())
        examples = list(source.rows())[:ROWS]
        labels = class_labels(None, source)
        tokenizer = tokenizer_for(family, [example.text for example in examples])
        task = SingleLabelTask(labels=labels, metric=Metric.ACCURACY)
        return cls(tokenizer=tokenizer, examples=examples, task=task)

    def encodings(self, *, type_ids: bool, marked: bool) -> list[Encoding]:
        """Encode the rows; with `marked` the two halves of a text are its entities."""
        encoder = TextEncoder(self.tokenizer, max_length=LENGTH, type_ids=type_ids)
        encodings = encoder.encode(self.examples)
        if not marked:
            return encodings
        return [
            Encoding(
                ids=row.ids,
                type_ids=row.type_ids,
                entity_spans=((1, len(row) // 2), (len(row) // 2, len(row) - 1)),
            )
            for row in encodings
        ]


def open_tiny(rows: SampleRows, folder: Path, head: Head) -> Classifier:
    """Build a classifier from a published encoder in the same way as a training run."""
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
    """Return the optimizer of a training run with a constant rate and no weight decay."""
    settings = TrainSettings(learning_rate=rate, weight_decay=0.0)
    groups = parameter_groups(classifier, classifier.layers(), settings)
    return make_optimizer(groups, settings)


def steps_to_fit(classifier: Classifier, rows: SampleRows) -> int | None:
    """Train until the rows are fitted; return the steps, or None after STEPS."""
    encodings = rows.encodings(
        type_ids=padding_of(classifier).type_ids, marked=classifier.settings.head is Head.ENTITY
    )
    truth_N = label_array(rows.examples, rows.task, "the sample")
    target_N = torch.from_numpy(truth_N).long()
    padding = padding_of(classifier)
    optimizer = optimizer_of(classifier, RATE)
    random = torch.Generator().manual_seed(0)
    with CheckpointEngine(classifier, padding=padding) as engine:
        for step in range(1, STEPS + 1):
            batch_B = torch.randperm(len(encodings), generator=random)[:BATCH]
            batch = [encodings[int(row)] for row in batch_B]
            classifier.train()
            logits_BC = classifier(**model_inputs(batch, padding, classifier.device))
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(logits_BC, target_N[batch_B])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % EVERY == 0:
                evaluation = rows.task.evaluate(engine.infer(encodings), truth_N)
                if evaluation.score >= ENOUGH:
                    return step
    return None


def measure_family(family: EncoderFamily, heads: Sequence[Head]) -> list[Fit]:
    """Train one family with each of the heads."""
    rows = SampleRows.of(family)
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


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all combinations and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.families", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options = parser.parse_args(arguments)
    check_writable(options.out)
    fits: list[Fit] = []
    for family in EncoderFamily:
        fits += measure_family(family, list(Head))
        sys.stdout.write(f"{family}: {[fit.steps for fit in fits if fit.family == family]}\n")
    result = FamiliesResult(
        rows=ROWS,
        fits=tuple(fits),
        command=command(parser, options),
        provenance=provenance(),
    )
    write_result(options.out, result)
    _check(fits)
    return 0


def _check(fits: Sequence[Fit]) -> None:
    failed = [f"{fit.family} with {fit.head}" for fit in fits if fit.steps is None]
    if failed:
        message = f"expected a fit within {STEPS} steps, not reached by {', '.join(failed)}"
        raise CheckFailedError(message, "check the family's padding, token types and head")


if __name__ == "__main__":
    sys.exit(main())
