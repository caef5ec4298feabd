"""Find the first layer of an engine whose output exceeds the tolerance.

The reference is the checkpoint, which runs the input alone. The engine runs from its own file with
intermediate tensors as outputs, on the smallest part of the batch that shows the difference. The
difference of a layer is relative: the norm of the error divided by the norm of the reference, over
the tokens of the input.

Shapes: R rows and T tokens of a call's arrays, N inputs of the call, L tokens of the longest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile

import numpy as np
from numpy.typing import NDArray

from pipework.export.convert.checkpoint2onnx import module_path
from pipework.export.convert.intermediates import Intermediates
from pipework.export.diagnosis.reference_activations import LayerOutput
from pipework.export.parity.case import Case, largest_difference
from pipework.run_folder.engine_record import Layout, Precision
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.collate import Collate, InputFeed
from pipework.text.padding import Padding

# Well above the differences in correct engines, which accumulate over the layers: 1e-6, 1e-3, 2e-2
# and 0.15 after six layers.
LIMITS = {
    Precision.FP32: 2e-5,
    Precision.FP16: 1e-2,
    Precision.BF16: 8e-2,
    Precision.INT8: 0.4,
}
TINY = 1e-12
MAX_BYTES = 2**30
HEADS = 16  # of a typical encoder


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerDiff:
    """The module path of a layer and the relative difference of its output."""

    layer: str
    diff: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerComparison:
    """The layers of an engine compared with the checkpoint, for one input.

    Attributes:
        diffs: the compared layers, in execution order.
        first: the first layer beyond the limit, or None.
        before: largest difference of the layers before it.
        limit: largest allowed difference of a layer.
        logits: largest absolute difference of a logit, with intermediate outputs exposed.
        random: whether a second call gave other logits.
    """

    diffs: tuple[LayerDiff, ...]
    first: LayerDiff | None
    before: float
    limit: float
    logits: float
    random: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class InputPosition:
    """The position of an input in the arrays of a call.

    Attributes:
        feed: the arrays of the call.
        number: index of the input in the call.
        row: row of its tokens.
        start: index of its first token in the row.
        length: number of its tokens.
    """

    feed: InputFeed
    number: int
    row: int
    start: int
    length: int


def compare_layers(
    intermediates: Intermediates,
    position: InputPosition,
    layers: Sequence[LayerOutput],
    limit: float,
) -> LayerComparison:
    """Compare all layers that engine and checkpoint have in common, for the input at `position`."""
    owners = _owners(intermediates.tensors, layers)
    candidates = [_candidates(layer, owners) for layer in layers]
    expected_C = layers[-1].value
    diffs, logits_C = _compare(intermediates, position, layers, candidates)
    leaf = next(layer.path for layer in reversed(layers) if layer.leaf)
    diffs.append(LayerDiff(layer=leaf, diff=_relative_diff(logits_C, expected_C)))
    run = intermediates.runner(())
    first, second = (run(position.feed.arrays)["logits"] for _ in range(2))
    first_index = next((i for i, diff in enumerate(diffs) if not diff.diff <= limit), None)
    earlier = diffs[:first_index]
    return LayerComparison(
        diffs=tuple(diffs),
        first=None if first_index is None else diffs[first_index],
        before=max((diff.diff for diff in earlier), default=0.0),
        limit=limit,
        logits=largest_difference(logits_C, expected_C),
        random=not np.array_equal(first, second, equal_nan=True),
    )


def _compare(
    intermediates: Intermediates,
    position: InputPosition,
    layers: Sequence[LayerOutput],
    candidates: Sequence[Sequence[str]],
) -> tuple[list[LayerDiff], NDArray[np.float32]]:
    """Compare each layer with the first of its candidate tensors that has the same shape.

    Returns:
        The differences in the order of the layers, and the logits [C] closest to the checkpoint's:
        exposing tensors can disable a faulty fusion of the runtime.
    """
    diffs: dict[int, LayerDiff] = {}
    logits_C = intermediates.runner(())(position.feed.arrays)["logits"][position.number]
    remaining = {index: names for index, names in enumerate(candidates) if names}
    batch_size = _tensors_per_call(position.feed, layers)
    # First the best candidate of each layer; then the next candidates of the layers whose tensors
    # had another shape, as many as a call can have: each call compiles the engine.
    count = 1
    while remaining:
        order = list(remaining)
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            names = {index: remaining[index][:count] for index in indices}
            run = intermediates.runner([*chain.from_iterable(names.values())])
            tensors = run(position.feed.arrays)
            for index in indices:
                values = (tensors[name] for name in names[index])
                found = (_layer_diff(layers[index], value, position) for value in values)
                diff = next(filter(None, found), None)
                diffs |= {} if diff is None else {index: diff}
            both = (logits_C, tensors["logits"][position.number])
            logits_C = min(both, key=lambda found_C: largest_difference(found_C, layers[-1].value))
        remaining = {
            index: names[count:]
            for index, names in remaining.items()
            if index not in diffs and names[count:]
        }
        count = max(1, batch_size // max(1, len(remaining)))
    return [diffs[index] for index in sorted(diffs)], np.asarray(logits_C, np.float32)


def _tensors_per_call(feed: InputFeed, layers: Sequence[LayerOutput]) -> int:
    """Return the number of float32 tensors of a call that fit into `MAX_BYTES`."""
    # All tensors of a large batch would take tens of GB. The largest have, per token, the width of
    # the widest layer or, per attention head, the tokens of the row.
    ids_RT = feed.arrays["input_ids"]
    width: int = max(layer.value.shape[-1] for layer in layers if layer.value.ndim)
    tensor_bytes = 4 * ids_RT.size * max(width, HEADS * ids_RT.shape[1])
    return max(1, int(MAX_BYTES // tensor_bytes))


def smallest_failing_call(
    case: Case, layout: Layout, intermediates: Intermediates, manifest: Manifest
) -> InputPosition:
    """Return the smallest call that reproduces at least half of a case's difference.

    Tries the input alone, with the longest input, and with more and more neighbours.
    """
    run, min_diff = intermediates.runner(()), case.max_diff / 2
    for indices in _subsets(case):
        rows = [case.rows[index] for index in indices]
        subset = replace(case, rows=rows, index=indices.index(case.index))
        position = locate_input(subset, layout, intermediates, manifest)
        found_C = run(position.feed.arrays)["logits"][position.number]
        if largest_difference(found_C, case.expected.values[0]) >= min_diff:
            return position
    return locate_input(case, layout, intermediates, manifest)


def _subsets(case: Case) -> Iterator[list[int]]:
    """Yield growing subsets of the batch's indices that include the case."""
    lengths = [len(row.encoding) for row in case.rows]
    yield [case.index]
    yield sorted({case.index, int(np.argmax(lengths))})
    size = 2
    while size < len(lengths):
        start = min(max(0, case.index - size // 2), len(lengths) - size)
        yield list(range(start, start + size))
        size *= 2


def locate_input(
    case: Case, layout: Layout, intermediates: Intermediates, manifest: Manifest
) -> InputPosition:
    """Return the call in which the engine computed a case, and the input's position in it."""
    collate = Collate(
        layout=layout,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
        first_only=intermediates.first_only,
        whole=case.whole,
    )
    feeds = collate.feeds([row.encoding for row in case.rows])
    feed = next(feed for feed in feeds if case.index in feed.rows)
    number = list(feed.rows).index(case.index)
    width, length = feed.arrays["input_ids"].shape[1], len(case.row.encoding)
    if layout is not Layout.PADDED:
        row, start = divmod(int(feed.arrays["text_index"][number, 0]), width)
    else:
        row, start = number, width - length if collate.padding.left else 0
    return InputPosition(feed=feed, number=number, row=row, start=start, length=length)


def _owners(tensors: Sequence[str], layers: Sequence[LayerOutput]) -> dict[str, str]:
    """Return the module path of each tensor, in the order of the tensors."""
    known = {layer.scope for layer in layers}
    return {name: _owner(module_path(name), known) for name in tensors if "/" in name}


def _owner(scope: str, known: set[str]) -> str:
    """Return the module of a scope, whose path in the graph may be shorter or longer."""
    if scope in known:
        return scope
    longer = [path for path in known if path.endswith(f".{scope}")]
    if longer:
        return min(longer, key=len)
    parts = scope.split(".")
    shorter = (".".join(parts[cut:]) for cut in range(1, len(parts)))
    return next((path for path in shorter if path in known), "")


def _candidates(layer: LayerOutput, owners: Mapping[str, str]) -> list[str]:
    """Return the tensors that may be the output of a layer, the most likely first."""
    # The output is the last tensor of the module, unless a submodule produced it.
    below = f"{layer.scope}."
    names = [name for name, own in owners.items() if f"{own}.".startswith(below)]
    if not layer.path or (layer.call_index and not layer.leaf):  # submodules keep the first path
        return []
    return [*takewhile(lambda name: owners[name] == layer.scope, reversed(names))]


def _layer_diff(
    layer: LayerOutput, tensor: NDArray[np.generic], position: InputPosition
) -> LayerDiff | None:
    """Compare a layer with a tensor; None if the shapes differ."""
    if not np.issubdtype(tensor.dtype, np.floating):
        return None
    for cut in _cuts(tensor, position):
        expected = layer.value
        if cut.ndim > 1 and len(cut) == 1:  # a packed graph may have the first token only
            expected = expected[:1]
        if cut.shape == expected.shape:
            diff = _relative_diff(cut, expected)
            if layer.bias is not None:
                diff = min(diff, _relative_diff(cut, expected - layer.bias))
            return LayerDiff(layer=layer.scope, diff=diff)
    return None


def _cuts(tensor: NDArray[np.generic], position: InputPosition) -> Iterator[NDArray[np.generic]]:
    """Yield the possible parts of a tensor that belong to the input, by the tensor's shape."""
    ids_RT = position.feed.arrays["input_ids"]
    tokens = slice(position.start, position.start + position.length)
    if tensor.shape[:2] == ids_RT.shape:
        yield tensor[position.row, tokens]
    if tensor.shape[:2] == (1, ids_RT.shape[1]):  # the same for all rows, such as positions
        yield tensor[0, tokens]
    if tensor.shape[:2] == ids_RT.shape[::-1]:  # XLNet's states have the tokens first
        yield tensor[tokens, position.row]
    if tensor.shape[:1] == (ids_RT.size,):
        yield tensor[position.row * ids_RT.shape[1] :][tokens]
    if tensor.shape[:1] == (len(position.feed.rows),):
        yield tensor[position.number]
        if tensor.ndim > 1:  # gathered, [N, L, ...]
            yield tensor[position.number, : position.length]


def _relative_diff(tensor: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Return the norm of the error divided by the norm of the reference; infinite for NaN."""
    if not np.isfinite(tensor).all():
        return float("inf")
    error = np.asarray(tensor, np.float64) - np.asarray(expected, np.float64)
    return float(np.linalg.norm(error) / max(float(np.linalg.norm(expected)), TINY))
