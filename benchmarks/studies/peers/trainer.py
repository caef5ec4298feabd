"""Train with the HuggingFace Trainer on the rows and hyperparameters of a pipework config.

`python -m pipework.benchmarks.studies.peers.trainer CONFIG --setting defaults|best [--set K=V]...`
prints one JSON object. It runs in an environment with `accelerate`, see peers/README.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from pipework.data.examples import Source
from pipework.record import Record
from pipework.scoring.evaluation import label_array
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.registry import task_type
from pipework.tasks.task import Task
from pipework.train.config.run_config import Config, load_config
from pipework.train.data.labels import class_labels


class Setting(StrEnum):
    """How the Trainer is configured.

    DEFAULTS pads every row to max_length and computes in float32, like the library's own example.
    BEST groups rows by length, pads to the longest row of a batch and computes in bf16 where the
    processor has bf16 instructions. Both use fused AdamW, the library's default.
    """

    DEFAULTS = "defaults"
    BEST = "best"


class PeerReport(Record):
    """The report of a training run: the rate of training only, and the dev score per epoch."""

    examples_per_s: float
    scores: tuple[float, ...]
    versions: dict[str, str]


class TokenizedRows(torch.utils.data.Dataset[dict[str, Any]]):
    """A data set of tokenized rows in memory."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


class Clock(TrainerCallback):  # type: ignore[misc]  # the library is partly typed
    """Measures the time of training only."""

    def __init__(self) -> None:
        self.start = self.stop = self.evaluation_s = 0.0

    def on_train_begin(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: object
    ) -> None:
        """Start the clock."""
        self.start = time.perf_counter()

    def on_train_end(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: object
    ) -> None:
        """Stop the clock."""
        self.stop = time.perf_counter()

    @property
    def training_s(self) -> float:
        """Seconds from the first to the last step, without evaluations."""
        return self.stop - self.start - self.evaluation_s


class TimedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that subtracts the time of evaluations from its clock."""

    clock: Clock

    def evaluate(self, *args: object, **kwargs: object) -> dict[str, float]:
        """Evaluate as the library does."""
        start = time.perf_counter()
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        self.clock.evaluation_s += time.perf_counter() - start
        return metrics


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.trainer", description=__doc__
    )
    parser.add_argument("config", help="config file, or the name of a recipe")
    parser.add_argument("--setting", type=Setting, choices=list(Setting), required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(arguments)
    report = run(load_config(options.config, options.overrides), options.setting)
    sys.stdout.write(report.model_dump_json() + "\n")
    return 0


def run(config: Config, setting: Setting) -> PeerReport:
    """Train with the settings of a config and return the report."""
    set_seed(config.train.seed)
    sources = config.sources()
    labels = class_labels(config.task.labels, sources["train"])
    task = task_type(config.task.kind)(labels=labels, metric=config.task.metric or Metric.ACCURACY)
    tokenizer = AutoTokenizer.from_pretrained(config.model.name)
    fixed = config.model.max_length if setting is Setting.DEFAULTS else None
    train, dev = (
        TokenizedRows(_rows(sources[name], task, tokenizer, config.model.max_length, fixed=fixed))
        for name in ("train", "dev")
    )
    model = AutoModelForSequenceClassification.from_pretrained(
        config.model.name, num_labels=len(labels), dtype=torch.float32
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = TimedTrainer(
            model=model,
            args=_arguments(config, setting, Path(scratch), len(train)),
            train_dataset=train,
            eval_dataset=dev,
            processing_class=tokenizer,
            data_collator=default_data_collator if fixed else DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda prediction: _score(prediction, task),
            callbacks=[clock],
        )
        trainer.clock = clock
        done = trainer.train()
    return PeerReport(
        examples_per_s=_seen(config, len(train), done.global_step) / clock.training_s,
        scores=tuple(
            line["eval_score"] for line in trainer.state.log_history if "eval_score" in line
        ),
        versions={name: version(name) for name in ("accelerate", "torch", "transformers")},
    )


def _rows(
    source: Source,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    fixed: int | None,
) -> list[dict[str, Any]]:
    examples = list(source.rows())
    pairs = [example.text_pair for example in examples]
    encoded = tokenizer(
        [example.text for example in examples],
        None if None in pairs else pairs,
        truncation=True,
        max_length=max_length,
        padding="max_length" if fixed else False,
    )
    labels_N = label_array(examples, task, str(source.path))
    return [
        {**{name: encoded[name][row] for name in encoded}, "labels": int(labels_N[row])}
        for row in range(len(examples))
    ]


def _arguments(config: Config, setting: Setting, scratch: Path, rows: int) -> TrainingArguments:
    settings = config.train
    best = setting is Setting.BEST
    per_epoch = -(-rows // settings.batch_size)
    steps = min(settings.max_steps or sys.maxsize, per_epoch * settings.epochs)
    return TrainingArguments(
        output_dir=str(scratch),
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=64,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        warmup_steps=round(steps * settings.warmup),
        lr_scheduler_type="linear",
        seed=settings.seed,
        bf16=best and _has_bf16(),
        train_sampling_strategy="group_by_length" if best else "random",
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),  # required for bf16 on a CPU
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _has_bf16() -> bool:
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return not flags.isdisjoint({"avx512_bf16", "amx_bf16"})


def _score(prediction: EvalPrediction, task: Task) -> dict[str, float]:
    logits_NC = np.asarray(prediction.predictions, np.float32)
    return {"score": task.evaluate(Outputs.of(logits_NC), np.asarray(prediction.label_ids)).score}


def _seen(config: Config, rows: int, steps: int) -> float:
    per_epoch = -(-rows // config.train.batch_size)
    return rows * steps / per_epoch


if __name__ == "__main__":
    sys.exit(main())
