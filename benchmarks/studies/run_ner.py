"""Train transformers' token classifier as its example run_ner does: the peer of runs with spans.

`python -m pipework.benchmarks.studies.run_ner --run RUN --packages DIR --out FILE` trains the
weights of a run, or of the runs of several seeds, on its rows, with its seed, epochs, batch size,
learning rate, precision and length. It writes one line for --floor of the accuracy study: the name,
the scores of all seeds and their mean. DIR has the packages accelerate and psutil. As in run_ner,
texts are split into words, the first token of a word has its tag, and the model after the last step
is scored.

The score is the micro-F1 of spans with exact ends and type, in percent.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from pipework.benchmarks.studies.script import report_errors, study_parser
from pipework.data.examples import Example
from pipework.run_folder.read_options import Format
from pipework.tasks.labels import spans_of
from pipework.tasks.spans import OUTSIDE, Span, parse_spans, spans_of_tokens
from pipework.train.config.run_config import Config, run_config
from pipework.train.distill.teacher import runs_of
from pipework.train.loop.step import autocast_type

WORD = re.compile(r"\w+|[^\w\s]")
IGNORED = -100
CPU = torch.device("cpu")


class TaggedWords(NamedTuple):
    """The words of a text, their characters [start, end), their tags, and the true spans."""

    words: list[str]
    places: list[tuple[int, int]]
    tags: list[str]
    spans: set[Span]


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Train and score a model per seed; write the line for --floor."""
    parser = study_parser("run_ner", __doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    options = parser.parse_args(arguments)
    sys.path.append(str(options.packages))
    scores = [100 * score(run_config(run)) for run in runs_of(options.run)]
    seeds = ", ".join(f"{value:.2f}" for value in scores)
    options.out.write_text(f"transformers' run_ner ({seeds})={mean(scores):.2f}\n", "utf-8")
    sys.stdout.write(options.out.read_text("utf-8"))
    return 0


def score(config: Config) -> float:
    """Return the F1 on test of a model trained as run_ner does."""
    import transformers  # noqa: PLC0415  (slow)

    sources = config.sources()
    tokens = config.data.format is Format.CONLL
    train, test = (
        [_words(row, tokens=tokens) for row in sources[split].rows()] for split in ("train", "test")
    )
    tags = sorted({tag for row in train for tag in row.tags})
    model_name = weights_folder(str(config.model.name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_name)
    with TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model_init=lambda: transformers.AutoModelForTokenClassification.from_pretrained(
                model_name, num_labels=len(tags)
            ),
            args=transformers.TrainingArguments(
                folder,
                seed=config.train.seed,
                num_train_epochs=config.train.epochs,
                per_device_train_batch_size=config.train.batch_size,
                learning_rate=config.train.learning_rate,
                bf16=autocast_type(config.train, CPU) is torch.bfloat16,
                use_cpu=True,
                dataloader_pin_memory=False,
                save_strategy="no",
                report_to="none",
            ),
            train_dataset=[_encoded(row, tokenizer, tags, config) for row in train],
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
        )
        trainer.train()
        encoded = [_encoded(row, tokenizer, tags, config) for row in test]
        logits = trainer.predict(encoded).predictions
    predicted = [
        logits_TC[: len(row["labels"])].argmax(axis=-1)[np.array(row["labels"]) != IGNORED]
        for row, logits_TC in zip(encoded, logits, strict=True)
    ]
    read = [[tags[tag] for tag in tags_W.tolist()] for tags_W in predicted]
    return _micro_f1(test, [_read_words(row, tokenizer, config) for row in test], read)


def weights_folder(name: str) -> str:
    """Return the folder of the weights, which a run has in its checkpoint."""
    checkpoint = Path(name) / "checkpoint"
    return str(checkpoint if checkpoint.is_dir() else name)


def _words(row: Example, *, tokens: bool) -> TaggedWords:
    """Split a text into words: the `tokens` of a CoNLL file, or runs of letters and other signs."""
    pattern = WORD
    if tokens:  # a text of a script without blanks has a character per token
        pattern = re.compile(r"\S+" if " " in row.text or row.text.isascii() else r"\S")
    places = [match.span() for match in pattern.finditer(row.text)]
    tags = [OUTSIDE] * len(places)
    spans = spans_of(row.label)
    for start, end, label in spans:
        inside = [n for n, place in enumerate(places) if place[0] < end and place[1] > start]
        for number, word in enumerate(inside):
            tags[word] = f"{'I' if number else 'B'}-{label}"
    words = [row.text[start:end] for start, end in places]
    return TaggedWords(words, places, tags, {*spans})


def _tokens(row: TaggedWords, tokenizer: Any, config: Config) -> Any:  # noqa: ANN401
    return tokenizer(
        row.words,
        is_split_into_words=True,
        truncation=True,
        max_length=config.model.max_length,
    )


def _encoded(row: TaggedWords, tokenizer: Any, tags: list[str], config: Config) -> dict[str, Any]:  # noqa: ANN401
    encoded = _tokens(row, tokenizer, config)
    numbers = {tag: number for number, tag in enumerate(tags)}
    words = encoded.word_ids()
    labels = [
        IGNORED if word is None or word == before else numbers.get(row.tags[word], 0)
        for before, word in zip([None, *words], words, strict=False)
    ]
    return {**encoded, "labels": labels}


def _read_words(row: TaggedWords, tokenizer: Any, config: Config) -> list[int]:  # noqa: ANN401
    """Return the numbers of the words that have a token and are not truncated."""
    words = _tokens(row, tokenizer, config).word_ids()
    return [*dict.fromkeys(word for word in words if word is not None)]


def _micro_f1(
    rows: Sequence[TaggedWords], words: Sequence[Sequence[int]], tags: Sequence[Sequence[str]]
) -> float:
    """Return the F1 of spans from the numbers and the tags of the read words of each row."""
    right = found = true = 0
    for row, words_W, tags_W in zip(rows, words, tags, strict=True):
        places = [row.places[word] for word in words_W]
        spans = {*parse_spans(spans_of_tokens(tags_W, places))}
        right += len(spans & row.spans)
        found += len(spans)
        true += len(row.spans)
    return 2 * right / max(1, found + true)


if __name__ == "__main__":
    sys.exit(main())
