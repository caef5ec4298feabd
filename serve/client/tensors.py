"""Texts become tensors of the Open Inference Protocol, and its tensors become predictions.

The protocol does not say what the classes are called. Where the server offers classifications
(`value:index:label`) their names are learnt from one; else an answer holds only its label.

Shapes: N texts, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.scoring.predictions import OneLabel, Prediction, SeveralLabels, Value
from pipework.serve.text_tensors import TEXT, TEXT_PAIR

WANTED = ("label", "score", "probabilities")
WHOLE = 1e-3  # how far from 1 the probabilities of one label may add up to
Tensors = Mapping[str, Sequence[bytes]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """The tensors of an answer, and the version that gave it; "" where the server does not say."""

    label_N: Sequence[str]
    score_N: NDArray[np.float32]
    probabilities_NC: NDArray[np.float32]
    version: str = ""

    def check(self, count: int) -> None:
        """Check that there is an answer to each of `count` texts.

        Raises:
            ValueError: there is not.
        """
        shape = self.probabilities_NC.shape
        rows = {len(self.label_N), len(self.score_N), *shape[:1]}
        if len(shape) != len("NC") or rows != {count}:
            message = f"expected probabilities [{count}, C], found {[*shape]}"
            raise ValueError(message)


def tensors(examples: Sequence[Example]) -> Tensors:
    """Return the inputs by name; entities are marked in their text."""
    inputs = {TEXT: [_marked(one).encode() for one in examples]}
    pairs = [one.text_pair for one in examples if one.text_pair is not None]
    if pairs:
        inputs[TEXT_PAIR] = [pair.encode() for pair in pairs]
    return inputs


def names_of(classified: Sequence[str]) -> tuple[str, ...]:
    """Return the labels in the order of the classes, from one text's `value:index:label`.

    Empty where a class has no name.
    """
    parts = [one.split(":", 2) for one in classified]
    named = {int(part[1]): part[2] for part in parts if len(part) == len(WANTED)}
    return tuple(named[index] for index in sorted(named)) if len(named) == len(parts) else ()


def predictions(found: Found, names_C: Sequence[str], top_k: int | None) -> list[Prediction]:
    """Return what the tensors say, as our own door does; `scores` keeps the `top_k` best.

    Raises:
        PipeError: they do not fit the names.
    """
    classes = found.probabilities_NC.shape[1]
    if classes == 1 and not any(found.label_N):
        return [Value(score=float(score)) for score in found.score_N]
    if not names_C:
        return [
            OneLabel(label=label, score=float(score), scores={label: float(score)})
            for label, score in zip(found.label_N, found.score_N, strict=True)
        ]
    if len(names_C) != classes:
        message = f"the server names {len(names_C)} classes and answers with {classes}"
        raise PipeError(message, "was another version loaded meanwhile? ask again")
    one = bool((np.abs(found.probabilities_NC.sum(axis=1) - 1) < WHOLE).all())
    order_NC = np.argsort(-found.probabilities_NC, axis=1, kind="stable")
    return [
        _prediction(label, {names_C[index]: float(row_C[index]) for index in order_C}, one, top_k)
        for label, row_C, order_C in zip(
            found.label_N, found.probabilities_NC, order_NC, strict=True
        )
    ]


def _prediction(
    label: str, ranked: Mapping[str, float], one: bool, top_k: int | None
) -> Prediction:
    scores = dict([*ranked.items()][:top_k])
    if one and label in ranked:
        return OneLabel(label=label, score=ranked[label], scores=scores)
    return SeveralLabels(labels=_parted(label, ranked), scores=scores)


def _parted(joined: str, ranked: Mapping[str, float]) -> tuple[str, ...]:
    """Part labels that stand joined by commas, best first; a label may hold a comma itself."""
    labels = []
    for name in ranked:
        if joined == name or joined.startswith(f"{name}, "):
            labels.append(name)
            joined = joined[len(name) :].removeprefix(", ")
    return tuple(labels)


def _marked(example: Example) -> str:
    if example.entities is None:
        return example.text
    text = example.text
    (start1, end1), (start2, end2) = example.entities
    spans = sorted([(start1, end1, "e1"), (start2, end2, "e2")], reverse=True)
    for start, end, name in spans:  # from the last on, so that places before it stay
        text = f"{text[:start]}<{name}>{text[start:end]}</{name}>{text[end:]}"
    return text
