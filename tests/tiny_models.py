"""Tiny models of every encoder family with every head, and 64 rows that they can learn."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from pipework.benchmarks.studies.tiny_encoders import (
    SOURCE,
    EncoderFamily,
    sample_examples,
    tokenizer_for,
)
from pipework.data.examples import Example
from pipework.scoring.evaluation import label_array
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.text.encoding import Encoding, TextEncoder
from pipework.train.config.model import CnnSettings, Head, ModelSettings, RnnSettings
from pipework.train.config.train import TrainSettings
from pipework.train.data.labels import class_labels
from pipework.train.loop.optim import make_optimizer, parameter_groups
from pipework.train.model.checkpoint_engine import CheckpointEngine, model_inputs
from pipework.train.model.classifier import Classifier, build, padding_of

BATCH, STEPS, LENGTH = 16, 200, 40
RATE, ENOUGH, EVERY = 3e-3, 0.97, 10


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRows:
    """The training data: 64 rows of the sample, their tokenizer and the task."""

    tokenizer: Tokenizer
    examples: list[Example]
    task: Task

    @classmethod
    def of(cls, family: EncoderFamily) -> "SampleRows":
        """Return the first rows of the sample, which include every topic."""
        examples = sample_examples()
        tokenizer = tokenizer_for(family, [example.text for example in examples])
        labels = class_labels(None, SOURCE)
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


def steps_to_fit(classifier: Classifier, rows: SampleRows, steps: int = STEPS) -> int | None:
    """Train until the rows are fitted; return the number of steps, or None if `steps` are few."""
    encodings = rows.encodings(
        type_ids=padding_of(classifier).type_ids, marked=classifier.settings.head is Head.ENTITY
    )
    truth_N = label_array(rows.examples, rows.task, "the sample")
    target_N = torch.from_numpy(truth_N).long()
    padding = padding_of(classifier)
    optimizer = optimizer_of(classifier, RATE)
    random = torch.Generator().manual_seed(0)
    with CheckpointEngine(classifier, padding=padding) as engine:
        for step in range(1, steps + 1):
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
