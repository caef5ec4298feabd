"""Choose the shape profiles of a TensorRT engine from the lengths of real rows.

TensorRT selects kernels for a range of shapes, a profile, and reserves memory for its largest
shapes. Several profiles make calls with short texts faster: a call uses the smallest profile that
fits.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipework.run_folder.engine_record import ShapeProfile
from pipework.serve.engines.collate import ROW_TOKENS
from pipework.text.packing import max_row_width

MAX_TEXTS = 32  # texts per call
USUAL_TEXTS = 8  # texts per call for which a profile is tuned
QUANTILES = (0.5, 0.95)  # of the lengths; the last profile ends at the limit
MULTIPLE = 8  # tile size of tensor cores

Shape = tuple[int, ...]


def shape_profiles(
    inputs: Mapping[str, Shape], lengths_N: Sequence[int], limit: int
) -> tuple[ShapeProfile, ...]:
    """Return the shape profiles of a graph, the smallest first.

    Args:
        inputs: shapes of the inputs by name, with -1 for dynamic dimensions.
        lengths_N: lengths of real rows, in tokens.
        limit: maximum input length of the model, in tokens.
    """
    packed = "text_index" in inputs
    return tuple(
        ShapeProfile(
            smallest=_shapes(inputs, texts=1, width=1, longest=1),
            usual=_shapes(inputs, texts=USUAL_TEXTS, width=length, longest=length),
            largest=_shapes(
                inputs,
                texts=MAX_TEXTS,
                # Packed texts of different lengths share rows of the maximum width.
                width=max_row_width(length, ROW_TOKENS) if packed else length,
                longest=length,
            ),
        )
        for length in profile_lengths(lengths_N, limit)
    )


def profile_lengths(lengths_N: Sequence[int], limit: int) -> list[int]:
    """Return the maximum lengths of the profiles, each a multiple of 8 or the limit."""
    quantiles = np.quantile(lengths_N, QUANTILES, method="higher")
    rounded = {-(-int(length) // MULTIPLE) * MULTIPLE for length in quantiles}
    return sorted({min(length, limit) for length in rounded} | {limit})


def _shapes(
    inputs: Mapping[str, Shape], *, texts: int, width: int, longest: int
) -> dict[str, Shape]:
    """Return the shapes of a call with one row per text: texts, row width and longest text."""
    shapes = {}
    for name, shape in inputs.items():
        match name:
            case "text_index":
                sizes = (texts, longest)
            case "entity_spans":
                sizes = (texts, 4)
            case _:
                sizes = (texts, width)
        pairs = zip(shape, sizes, strict=True)
        shapes[name] = tuple(size if fixed < 0 else fixed for fixed, size in pairs)
    return shapes
