"""Train transformers' sequence classifier: the peer of runs with one label per text.

`python -m pipework.benchmarks.studies.run_classification --run RUN --out FILE` trains the weights
of a run on its rows with transformers' Trainer, with the run's seed, epochs or steps, batch size,
learning rate, precision and length, and stores the examples per second and the dev accuracy of
both. The Trainer pads a batch to its longest text; its other settings are its defaults.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import harmonic_mean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from pipework.benchmarks.results_schema.provenance import Provenance, provenance
from pipework.benchmarks.studies.run_ner import weights_folder
from pipework.benchmarks.studies.script import report_errors, stored, study_parser
from pipework.data.examples import Example
from pipework.record import Record
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from pipework.train.config.run_config import Config, run_config
from pipework.train.loop.step import autocast_type
from pipework.train.report.curves import lines


class TrainingSpeed(Record):
    """Examples per second without evaluations, and the accuracy on dev in percent."""

    examples_per_s: float
    dev_accuracy: float


class TrainerResult(Record):
    """A run and the Trainer with the same weights, rows and settings, on the same device."""

    kind: Literal["trainer"] = "trainer"
    run: str
    device: str
    precision: str
    pipework: TrainingSpeed
    trainer: TrainingSpeed
    provenance: Provenance


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Train with the Trainer and store both results; return the exit code."""
    parser = study_parser("run_classification", __doc__)
    parser.add_argument("--run", type=Path, required=True)
    options = parser.parse_args(arguments)
    result = stored(options.out, lambda _: compare(options.run))
    for name, speed in (("pipework", result.pipework), ("Trainer", result.trainer)):
        figures = f"{speed.examples_per_s:,.0f} examples/s, dev accuracy {speed.dev_accuracy:.2f}"
        sys.stdout.write(f"{result.run}: {name}: {figures}\n")
    return 0


def compare(run: Path) -> TrainerResult:
    """Return the speed and accuracy of a run, and those of the Trainer."""
    config = run_config(run)
    cuda = torch.cuda.is_available()
    rates = [line["examples_per_s"] for line in lines(run) if "examples_per_s" in line]
    accuracy = read_manifest(run).data.metrics["dev"].scores[Metric.ACCURACY]
    return TrainerResult(
        run=run.name,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        precision=config.train.precision,
        pipework=TrainingSpeed(examples_per_s=harmonic_mean(rates), dev_accuracy=100 * accuracy),
        trainer=train(config, torch.device("cuda" if cuda else "cpu")),
        provenance=provenance(),
    )


def train(config: Config, device: torch.device) -> TrainingSpeed:
    """Return the speed of the Trainer and the accuracy of its model."""
    import transformers  # noqa: PLC0415  (slow)

    sources = config.sources()
    folder = weights_folder(str(config.model.name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = {split: list(sources[split].rows()) for split in ("train", "dev")}
    labels = sorted({str(row.label) for row in rows["train"]})
    data = {split: _encoded(rows[split], labels, tokenizer, config) for split in rows}
    settings = config.train
    kind = autocast_type(settings, device)
    with TemporaryDirectory() as output:
        trainer = transformers.Trainer(
            model_init=lambda: transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=len(labels)
            ),
            args=transformers.TrainingArguments(
                output,
                seed=settings.seed,
                num_train_epochs=settings.epochs,
                max_steps=settings.max_steps or -1,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                bf16=kind is torch.bfloat16,
                fp16=kind is torch.float16,
                tf32=settings.tf32 if device.type == "cuda" else None,
                use_cpu=device.type == "cpu",
                dataloader_pin_memory=device.type == "cuda",
                save_strategy="no",
                report_to="none",
            ),
            train_dataset=data["train"],
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
        )
        metrics = trainer.train().metrics
        predicted = trainer.predict(data["dev"])
    right = predicted.predictions.argmax(axis=-1) == predicted.label_ids
    return TrainingSpeed(
        examples_per_s=metrics["train_samples_per_second"],
        dev_accuracy=100 * float(right.mean()),
    )


def _encoded(
    rows: Sequence[Example],
    labels: Sequence[str],
    tokenizer: Any,  # noqa: ANN401
    config: Config,
) -> list[dict[str, Any]]:
    texts, pairs = [row.text for row in rows], [row.text_pair for row in rows]
    encoded = tokenizer(
        texts,
        None if None in pairs else pairs,
        truncation=True,
        max_length=config.model.max_length,
    )
    numbers = [{"labels": labels.index(str(row.label))} for row in rows]
    values = zip(*encoded.values(), strict=True)
    return [
        dict(zip(encoded, row, strict=True)) | number
        for row, number in zip(values, numbers, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
