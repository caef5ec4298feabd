"""Check that an imported model answers as its source does, from the text to the logits.

Shapes: N texts, C classes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import TOLERANCES
from pipework.export.importing.source_checks import is_decoder, open_tokenizer
from pipework.export.importing.source_model import SourceModel
from pipework.export.parity.case import prediction_change
from pipework.export.rows.edge_cases import edge_examples
from pipework.progress import Progress, counted
from pipework.run_folder.engine_record import Tolerance
from pipework.scoring.evaluation import Engine, infer_all
from pipework.scoring.logit_diff import Comparison
from pipework.tasks.outputs import Outputs, offsets_of
from pipework.tasks.task import Task
from pipework.text.encoding import Encoding, TextEncoder
from pipework.train.data.tokenizer import SPECIAL_TOKENS, library_errors, summary
from pipework.train.model.families import output_activation

COMPARED_ROWS = 1000
BATCH = 8  # most inputs of a batch of the source
BATCH_SIZES = (2, 3, BATCH)
WORST = 10
NOT_EVERY = "the source cannot be run on every input"
ANY_TEXT = "expected a model that takes any text, and a tokenizer that adds its tokens"
AS_TOKENS = "read them as tokens, as the source does: --set special_tokens=true"


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceComparison:
    """The result of a successful comparison.

    Attributes:
        rows: number of compared inputs.
        max_abs: the largest difference of a logit.
        with_special_tokens: number of rows that were left out, because they contain a special token
            that the source reads as the token, and the import as text.
    """

    rows: int
    max_abs: float
    with_special_tokens: int


class SourceReference:
    """The source as its own program runs it: a text per call, with its own tokenizer.

    Model and tokenizer are loaded from the source again, so that it shows errors of the copy.
    """

    def __init__(self, source: SourceModel, max_length: int) -> None:
        self._tokenizer = open_tokenizer(source.tokenizer_name)
        self._max_length = max_length
        self._model = source.reopen().eval()
        config = source.classifier.config
        self._activation = output_activation(config) or torch.nn.Identity()
        self.is_decoder = is_decoder(config)
        self.tolerance = TOLERANCES[source.precision]
        # The last position of XLNet has the summary of the text.
        self._padding_side = "left" if config.model_type == "xlnet" else None

    def token_ids(self, example: Example) -> list[int]:
        """Return the token ids [T] of an input."""
        ids: list[int] = self._tokens(example)["input_ids"][0].tolist()
        return ids

    def outputs(self, examples: Sequence[Example], advance: Callable[[int], None]) -> Outputs:
        """Return the logits; `advance` is called after each input."""
        parts = []
        for example in examples:
            parts.append(self.batch_outputs([example]))
            advance(1)
        return Outputs.concatenate(parts)

    def batch_outputs(self, examples: Sequence[Example]) -> Outputs:
        """Return the logits of inputs that are computed together, with padding."""
        tokens = self._tokens(*examples)
        try:
            with torch.inference_mode():
                logits = self._activation(self._model(**tokens).logits).float()
        except library_errors() as error:
            length = counted(tokens["input_ids"].shape[1], "token")
            message = f"{NOT_EVERY}: it fails for one with {length} ({summary(error)})"
            raise ConfigError(message, ANY_TEXT) from error
        if logits.dim() == 2:  # noqa: PLR2004  (a row for each input)
            return Outputs.of(logits.numpy())
        mask_NT = tokens["attention_mask"] != 0
        return Outputs(logits[mask_NT].numpy(), offsets_of(mask_NT.sum(dim=1).numpy()))

    def _tokens(self, *examples: Example) -> dict[str, torch.Tensor]:
        # In lists, as in a batch: outside of lists, an empty second text is ignored.
        pairs = [example.text_pair or "" for example in examples]
        tokens: dict[str, torch.Tensor] = self._tokenizer(
            [example.text for example in examples],
            None if examples[0].text_pair is None else pairs,
            truncation=True,
            max_length=self._max_length,
            padding=len(examples) > 1,
            padding_side=self._padding_side,
            return_tensors="pt",
        )
        return tokens

    def task_tokens(self) -> tuple[str, ...]:
        """Return the special tokens besides those of the family, such as [E1]."""
        names = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
        family = {str(getattr(self._tokenizer, f"{name}_token", None)) for name in names}
        family |= {*SPECIAL_TOKENS}
        return tuple(token for token in self.special_tokens() if token not in family)

    def special_tokens(self) -> tuple[str, ...]:
        """Return the special tokens, which the source also finds inside texts."""
        added = self._tokenizer.added_tokens_decoder.values()
        tokens = [str(token) for token in added if token.special]
        return tuple(dict.fromkeys([*tokens, *map(str, self._tokenizer.all_special_tokens)]))


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """The model in the run folder, opened from there.

    `has_bias` is that of the layer that computes the logits.
    """

    task: Task
    encoder: TextEncoder
    engine: Engine
    has_bias: bool


def compare_with_source(
    imported: ImportedModel,
    reference: SourceReference,
    examples: Sequence[Example],
    progress: Progress,
) -> SourceComparison:
    """Compare the logits for rows of the user and for edge cases, at the limits of engines.

    Raises:
        CheckFailedError: they differ; the details list the inputs that differ most.
        ConfigError: the source fails for an input, depends on the batch, or reads special tokens in
            rows of the user: of the task in one, or others in all of them.
    """
    as_text = {*reference.special_tokens()} - imported.encoder.tokens_in_texts
    compared = _compared(imported.encoder, reference, examples, as_text)
    encodings = imported.encoder.encode([*compared.values()])
    with progress.stage("running the source", len(compared), "rows"):
        try:
            expected = reference.outputs([*compared.values()], progress.advance)
            _check_batches(imported.task, reference, [*compared.values()], encodings, expected)
        except library_errors() as error:
            message = f"{NOT_EVERY}: {summary(error)}"
            raise ConfigError(message, ANY_TEXT) from error
    found = infer_all(imported.engine, encodings, progress)
    tokens = _token_differences(compared, encodings, reference)
    if (found.counts != expected.counts).any():
        message = f"the import has other tokens than its source for {counted(len(tokens), 'input')}"
        raise CheckFailedError(message, "nothing was imported", "\n".join(tokens[:WORST]))
    comparison = Comparison.of(
        imported.task,
        expected=expected,
        found=found,
        inputs=np.arange(len(compared)),
        lengths=np.array([len(encoding) for encoding in encodings]),
    )
    breaches = comparison.breaches(reference.tolerance)
    if breaches:
        limits = ", ".join(breach.limit for breach in breaches)
        raise _error(comparison, reference.tolerance, limits, tokens, compared)
    return SourceComparison(
        rows=len(compared),
        max_abs=float(comparison.max_differences.max()),
        with_special_tokens=_rows_with(examples, as_text),
    )


def _compared(
    encoder: TextEncoder,
    reference: SourceReference,
    examples: Sequence[Example],
    as_text: Collection[str],
) -> dict[str, Example]:
    """Return rows and edge cases without special tokens that the import reads as text."""
    named = {f"row {number}": row for number, row in enumerate(examples, start=1)}
    named |= edge_examples(examples[0])
    named["longer than max_length"] = _longer(examples[0], encoder.max_length)
    _check_task_tokens(examples, [t for t in reference.task_tokens() if t in as_text])
    if _rows_with(examples, as_text) == len(examples):
        found = ", ".join(sorted(token for token in as_text if _rows_with(examples, [token])))
        message = f"every row has a special token that the import reads as text: {found}"
        raise ConfigError(message, f"no row can be compared: remove these tokens, or {AS_TOKENS}")
    compared = {name: row for name, row in named.items() if not _contains(row, as_text)}
    if reference.is_decoder:  # without special tokens, the source cannot read an empty text
        compared = {name: row for name, row in compared.items() if reference.token_ids(row)}
    return compared


def _check_task_tokens(examples: Sequence[Example], tokens: Sequence[str]) -> None:
    """Check that no row contains a special token of the task that the import reads as text.

    Raises:
        ConfigError: a row does.
    """
    rows = _rows_with(examples, tokens)
    if rows:
        listed = ", ".join(tokens[:WORST])
        message = f"special tokens of the task ({listed}) are in {rows} of {len(examples)} rows"
        raise ConfigError(message, AS_TOKENS)


def _check_batches(
    task: Task,
    reference: SourceReference,
    examples: Sequence[Example],
    encodings: Sequence[Encoding],
    expected: Outputs,
) -> None:
    """Check that the source predicts the same for an input alone and in batches.

    Raises:
        ConfigError: it does not.
    """
    order = np.argsort([len(encoding) for encoding in encodings], kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, BATCH).astype(int))].tolist()
    allowed = reference.tolerance.max_abs * task.difference_unit(expected.values)
    for size in BATCH_SIZES:
        rows = [*chosen[: size - 1], chosen[-1]]  # short inputs with the longest
        found = reference.batch_outputs([examples[row] for row in rows])
        largest = float(np.abs(found.values - expected.take(rows).values).max())
        if not largest <= allowed:
            message = (
                f"the source predicts differently for an input alone and in a batch of {len(rows)}:"
                f" logits differ by {largest:.3g} (tolerance {allowed:.3g})"
            )
            hint = "no engine can reproduce it: use a model whose padding has no effect"
            raise ConfigError(message, hint)


def _longer(row: Example, max_length: int) -> Example:
    """Return a text that is truncated, whose first and last tokens differ."""
    return replace(row, text=" ".join(["5 6 7 8", row.text[:50]] * max_length))


def _contains(row: Example, tokens: Collection[str]) -> bool:
    texts = (row.text, row.text_pair or "")
    return any(token in text for token in tokens for text in texts)


def _rows_with(rows: Sequence[Example], tokens: Collection[str]) -> int:
    return sum(_contains(row, tokens) for row in rows)


def _token_differences(
    rows: dict[str, Example], encodings: Sequence[Encoding], reference: SourceReference
) -> list[str]:
    """Describe the inputs whose token ids differ."""
    lines = []
    for (name, row), encoding in zip(rows.items(), encodings, strict=True):
        ids = reference.token_ids(row)
        if ids != encoding.ids.tolist():
            lines.append(f"{name}: token ids {ids[:12]}, imported {encoding.ids[:12].tolist()}")
    return lines


def _error(
    comparison: Comparison,
    tolerance: Tolerance,
    limits: str,
    tokens: Sequence[str],
    rows: dict[str, Example],
) -> CheckFailedError:
    count, allowed = len(rows), tolerance.max_abs * comparison.unit
    largest_N: NDArray[np.floating] = comparison.max_differences
    message = (
        f"the import answers differently from its source ({limits}): logits differ by up to "
        f"{largest_N.max():.3g} (tolerance {allowed:g}), {int(comparison.flipped.sum())} of "
        f"{counted(count, 'prediction')} changed"
    )
    if tokens:
        message += f", the token ids of {len(tokens)} of {counted(count, 'input')} differ"
    names = [*rows]
    head = f"{'input':<24} {'tokens':>6} {'max diff':>9}  source -> import"
    lines = []
    for row in np.argsort(-largest_N, kind="stable")[:WORST].tolist():
        both = (comparison.expected_XC[row], comparison.found_XC[row])
        labels = prediction_change(
            comparison.task, *(Outputs.of(found_C[None]) for found_C in both)
        )
        tokens_and_diff = f"{comparison.lengths_X[row]:>6} {largest_N[row]:>9.2e}"
        lines.append(f"{names[comparison.input_X[row]]:<24} {tokens_and_diff}  {labels}")
    details = "\n".join((head, *lines, *tokens[:WORST]))
    return CheckFailedError(message, "nothing was imported", details)
