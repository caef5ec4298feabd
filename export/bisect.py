"""The first layer of an engine whose output leaves the tolerance.

The right values are those of the checkpoint, which reads one input alone; the engine's come from
its own file, laid open, in the batch that showed the difference. A difference of a layer is
relative: the norm of what it is wrong by, over the norm of what is right, of the tokens of the
one input.

Shapes: R rows and T tokens of a call's arrays, N inputs of the call, L tokens of the longest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from export.case import Case
from export.laid_open import Arrays, LaidOpen
from export.right_values import Layer, short
from pipework.engine_record import Layout, Precision
from pipework.manifest import Manifest
from pipework.padding import Padding
from serve.collate import Collate, Feed

# Well above what each precision does to the layers of a right engine, whose differences add up
# from layer to layer: 1e-6, 1e-3, 2e-2 and 0.15 in six layers.
LIMITS = {
    Precision.FP32: 2e-5,
    Precision.FP16: 1e-2,
    Precision.BF16: 8e-2,
    Precision.INT8: 0.4,
}
TINY = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A layer by its module path, and how far its output is from the right one, relatively."""

    layer: str
    apart: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """What was seen inside an engine, for one input.

    Attributes:
        steps: the layers that could be compared, in the order in which they are done.
        first: the first that leaves the limit, or None.
        before: the largest difference of the layers before it.
        limit: what a layer may differ by.
        logits: how far the logits of the laid open engine are from the right ones, absolutely.
        random: whether a second call gave other answers.
    """

    steps: tuple[Step, ...]
    first: Step | None
    before: float
    limit: float
    logits: float
    random: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an input stands in the arrays of a call.

    Attributes:
        feed: the call.
        number: of the input among those of the call.
        row: of the ids.
        start: its first token in the row.
        length: its tokens.
    """

    feed: Feed
    number: int
    row: int
    start: int
    length: int


def bisect(opened: LaidOpen, place: Place, layers: Sequence[Layer], limit: float) -> Bisection:
    """Compare every layer that both have, for the input at `place`."""
    owners = _owners(opened.tensors, layers)
    candidates = [_candidates(layer, owners) for layer in layers]
    names = [name for some in candidates for name in some]
    run = opened.showing(names)
    found, again = run(place.feed.arrays), run(place.feed.arrays)
    compared = (
        _step(layer, some, found, place) for layer, some in zip(layers, candidates, strict=True)
    )
    steps = [step for step in compared if step is not None]
    right_C = layers[-1].value
    leaf = next(layer.path for layer in reversed(layers) if layer.leaf)
    logits_C = np.asarray(found["logits"][place.number], np.float64)
    steps.append(Step(layer=leaf, apart=_apart(logits_C, right_C)))
    at = next((at for at, step in enumerate(steps) if not step.apart <= limit), None)
    earlier = steps if at is None else steps[:at]
    return Bisection(
        steps=tuple(steps),
        first=None if at is None else steps[at],
        before=max((step.apart for step in earlier), default=0.0),
        limit=limit,
        logits=float(np.nan_to_num(np.abs(logits_C - right_C), nan=np.inf, posinf=np.inf).max()),
        random=not np.array_equal(found["logits"], again["logits"], equal_nan=True),
    )


def find_place(case: Case, layout: Layout, opened: LaidOpen, manifest: Manifest) -> Place:
    """Make the call in which the engine answered a case."""
    collate = Collate(
        layout=layout,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
        first_only=opened.reads_first,
        whole=case.whole,
    )
    feeds = collate.feeds([row.encoding for row in case.rows])
    feed = next(feed for feed in feeds if case.place in feed.rows)
    number = list(feed.rows).index(case.place)
    width, length = feed.arrays["input_ids"].shape[1], len(case.row.encoding)
    if layout is Layout.PACKED:
        row, start = divmod(int(feed.arrays["text_index"][number, 0]), width)
    else:
        row, start = number, width - length if collate.padding.left else 0
    return Place(feed=feed, number=number, row=row, start=start, length=length)


def _owners(tensors: Sequence[str], layers: Sequence[Layer]) -> dict[str, str]:
    """Return the module path that each tensor is made in, in the order of the tensors."""
    known = {layer.scope for layer in layers}
    named = ((name, name.strip("/").split("/")[:-1]) for name in tensors if "/" in name)
    return {name: _owner(short(".".join(parts)), known) for name, parts in named}


def _owner(scope: str, known: set[str]) -> str:
    """Return the module that a scope means: a graph may know it by a shorter or a longer path."""
    if scope in known:
        return scope
    longer = [path for path in known if path.endswith(f".{scope}")]
    if longer:
        return min(longer, key=len)
    parts = scope.split(".")
    shorter = (".".join(parts[cut:]) for cut in range(1, len(parts)))
    return next((path for path in shorter if path in known), "")


def _candidates(layer: Layer, owners: Mapping[str, str]) -> list[str]:
    """Return the tensors that may be the output of a layer, the likeliest first.

    That is the last one made in it, unless that was made in a module inside.
    """
    below = f"{layer.scope}."
    names = [name for name, own in owners.items() if f"{own}.".startswith(below)]
    if not layer.path or (layer.turn and not layer.leaf):  # its modules keep the path of turn 0
        return []
    return [*takewhile(lambda name: owners[name] == layer.scope, reversed(names))]


def _step(layer: Layer, names: Sequence[str], found: Arrays, place: Place) -> Step | None:
    """Compare a layer with the first of its candidates that has its shape."""
    for name in names:
        if not np.issubdtype(found[name].dtype, np.floating):
            continue
        for cut in _cuts(found[name], place):
            if cut.shape == layer.value.shape:
                apart = _apart(cut, layer.value)
                if layer.bias is not None:
                    apart = min(apart, _apart(cut, layer.value - layer.bias))
                return Step(layer=layer.scope, apart=apart)
    return None


def _cuts(found: NDArray[np.generic], place: Place) -> Iterator[NDArray[np.generic]]:
    """Yield what may be the input's share of a tensor, by the tensor's shape."""
    ids_RT = place.feed.arrays["input_ids"]
    tokens = slice(place.start, place.start + place.length)
    if found.shape[:2] == ids_RT.shape:
        yield found[place.row, tokens]
    if found.shape[:2] == (1, ids_RT.shape[1]):  # the same for each row, as positions may be
        yield found[0, tokens]
    if found.shape[:2] == ids_RT.shape[::-1]:  # XLNet's states have the tokens first
        yield found[tokens, place.row]
    if found.shape[:1] == (ids_RT.size,):
        yield found[place.row * ids_RT.shape[1] :][tokens]
    if found.shape[:1] == (len(place.feed.rows),):
        yield found[place.number]
        if found.ndim > 1:  # gathered, [N, L, ...]
            yield found[place.number, : place.length]


def _apart(found: NDArray[np.generic], right: NDArray[np.generic]) -> float:
    """Return the norm of a difference over the norm of what is right; infinite for no number."""
    if not np.isfinite(found).all():
        return float("inf")
    wrong = np.asarray(found, np.float64) - np.asarray(right, np.float64)
    return float(np.linalg.norm(wrong) / max(float(np.linalg.norm(right)), TINY))
