"""The first layer of an engine whose output leaves the tolerance.

The right values are those of the checkpoint, which reads one input alone; the engine's come from
its own file, laid open, in the smallest part of the batch that shows the difference, and a few
tensors at a time: all those of a large batch would need tens of GB. A difference of a layer is
relative: the norm of what it is wrong by, over the norm of what is right, of the tokens of the
one input.

Shapes: R rows and T tokens of a call's arrays, N inputs of the call, L tokens of the longest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from pipework.export.diagnosis.intermediates import LaidOpen
from pipework.export.diagnosis.reference_activations import Layer, short
from pipework.export.parity.case import Case
from pipework.run_folder.engine_record import Layout, Precision
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.collate import Collate, Feed
from pipework.text.padding import Padding

# Well above what each precision does to the layers of a right engine, whose differences add up
# from layer to layer: 1e-6, 1e-3, 2e-2 and 0.15 in six layers.
LIMITS = {
    Precision.FP32: 2e-5,
    Precision.FP16: 1e-2,
    Precision.BF16: 8e-2,
    Precision.INT8: 0.4,
}
TINY = 1e-12
MOST_BYTES = 2**30
HEADS = 16  # as many as usual encoders have


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
    right_C = layers[-1].value
    steps, logits_C = _compare(opened, place, layers, candidates)
    leaf = next(layer.path for layer in reversed(layers) if layer.leaf)
    steps.append(Step(layer=leaf, apart=_apart(logits_C, right_C)))
    again = opened.showing(())
    first, second = (again(place.feed.arrays)["logits"] for _ in range(2))
    at = next((at for at, step in enumerate(steps) if not step.apart <= limit), None)
    earlier = steps if at is None else steps[:at]
    return Bisection(
        steps=tuple(steps),
        first=None if at is None else steps[at],
        before=max((step.apart for step in earlier), default=0.0),
        limit=limit,
        logits=_off(logits_C, right_C),
        random=not np.array_equal(first, second, equal_nan=True),
    )


def _compare(
    opened: LaidOpen, place: Place, layers: Sequence[Layer], candidates: Sequence[Sequence[str]]
) -> tuple[list[Step], NDArray[np.float32]]:
    """Compare each layer with the first of its candidates that has its shape.

    The likeliest of every layer are asked for first, as many at a time as `_at_once` allows, and
    the next only where those have other shapes.

    Returns:
        The steps in the order of the layers; and the logits [C] of that call which gave the best:
        laid open, what a runtime fuses may answer rightly.
    """
    steps: dict[int, Step] = {}
    logits_C = opened.showing(())(place.feed.arrays)["logits"][place.number]
    left = {at: names for at, names in enumerate(candidates) if names}
    most = _at_once(place.feed, layers)
    while left:
        order = list(left)
        for some in (order[start : start + most] for start in range(0, len(order), most)):
            found = opened.showing([left[at][0] for at in some])(place.feed.arrays)
            for at in some:
                step = _step(layers[at], found[left[at][0]], place)
                steps |= {} if step is None else {at: step}
            both = (logits_C, found["logits"][place.number])
            logits_C = min(both, key=lambda one_C: _off(one_C, layers[-1].value))
        left = {at: names[1:] for at, names in left.items() if at not in steps and names[1:]}
    return [steps[at] for at in sorted(steps)], np.asarray(logits_C, np.float32)


def _at_once(feed: Feed, layers: Sequence[Layer]) -> int:
    """Return how many tensors of a call fit into `MOST_BYTES`, in float32.

    A tensor has for each token the width of the widest layer, or the tokens of its row for each
    head of an attention.
    """
    ids_RT = feed.arrays["input_ids"]
    wide: int = max(layer.value.shape[-1] for layer in layers if layer.value.ndim)
    each = 4 * ids_RT.size * max(wide, HEADS * ids_RT.shape[1])
    return max(1, int(MOST_BYTES // each))


def smallest_place(case: Case, layout: Layout, opened: LaidOpen, manifest: Manifest) -> Place:
    """Make the smallest call in which the engine still errs for a case by half as much.

    It is tried alone, beside the longest input, and among ever more of its neighbours.
    """
    run, allowed = opened.showing(()), case.apart / 2
    for some in _companies(case):
        part = replace(case, rows=[case.rows[at] for at in some], place=some.index(case.place))
        place = find_place(part, layout, opened, manifest)
        found_C = run(place.feed.arrays)["logits"][place.number]
        if _off(found_C, case.expected_C) >= allowed:
            return place
    return find_place(case, layout, opened, manifest)


def _companies(case: Case) -> Iterator[list[int]]:
    """Yield places of the batch, ever more, with that of the case among them."""
    lengths = [len(row.encoding) for row in case.rows]
    yield [case.place]
    yield sorted({case.place, int(np.argmax(lengths))})
    size = 2
    while size < len(lengths):
        start = min(max(0, case.place - size // 2), len(lengths) - size)
        yield list(range(start, start + size))
        size *= 2


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


def _step(layer: Layer, found: NDArray[np.generic], place: Place) -> Step | None:
    """Compare a layer with a tensor, if that has its shape."""
    if not np.issubdtype(found.dtype, np.floating):
        return None
    for cut in _cuts(found, place):
        right = layer.value
        if cut.ndim > 1 and len(cut) == 1:  # a packed graph may have the first token only
            right = right[:1]
        if cut.shape == right.shape:
            apart = _apart(cut, right)
            if layer.bias is not None:
                apart = min(apart, _apart(cut, right - layer.bias))
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


def _off(found_C: NDArray[np.generic], right_C: NDArray[np.generic]) -> float:
    """Return the largest difference of a logit; infinite for no number."""
    wrong_C = np.asarray(found_C, np.float64) - np.asarray(right_C, np.float64)
    return float(np.nan_to_num(np.abs(wrong_C), nan=np.inf, posinf=np.inf).max())


def _apart(found: NDArray[np.generic], right: NDArray[np.generic]) -> float:
    """Return the norm of a difference over the norm of what is right; infinite for no number."""
    if not np.isfinite(found).all():
        return float("inf")
    wrong = np.asarray(found, np.float64) - np.asarray(right, np.float64)
    return float(np.linalg.norm(wrong) / max(float(np.linalg.norm(right)), TINY))
