"""The characters of tokens, and the windows in which tokens of longer texts have their places.

Shapes: T tokens of a text, W windows.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as Tokens

from pipework.tasks.kinds import Words
from pipework.tasks.outputs import NO_PLACE, Places
from pipework.text.words import first_of_words


def places_of(text: str, tokens: Tokens, words: Words) -> Places:
    """Return the characters of the tokens of a text, see `TextEncoder.places`; at least one."""
    places_T2 = np.array(tokens.offsets or [(0, 0)], np.int32)
    spaces = np.array([character.isspace() for character in text] + [False], np.bool_)
    for column, step, before in ((0, 1, 0), (1, -1, 1)):  # white space at the start and the end
        while (
            outer_T := spaces[places_T2[:, column] - before] & (places_T2[:, 0] < places_T2[:, 1])
        ).any():
            places_T2[outer_T, column] += step
    special_T = np.array(tokens.special_tokens_mask or [1], np.bool_)
    special_T |= places_T2[:, 0] == places_T2[:, 1]  # only white space
    places_T2[special_T] = NO_PLACE
    return first_of_words(places_T2, text, words)


def moved_ends(
    ends: Sequence[int],
    starts: Sequence[int],
    tagged_T: NDArray[np.bool_],
    inside_WT: NDArray[np.bool_],
) -> list[int]:
    """Return the ends of windows at the nearest places where neither window has a span.

    Args:
        ends: the end of the tokens of each window.
        starts: their first tokens.
        tagged_T: the tokens of the text that have a tag.
        inside_WT: the tokens of each window in spans.
    """
    moved, room = list[int](), inside_WT.shape[1]
    for window, (end, start) in enumerate(zip(ends, starts[1:], strict=False)):
        earlier, later = inside_WT[window], inside_WT[window + 1]
        shared = [*(np.flatnonzero(tagged_T[start : starts[window] + room]) + start).tolist()]
        free = [
            token
            for before, token in pairwise(shared)
            if not (earlier[[before - starts[window], token - starts[window]]].all())
            and not (later[[before - start, token - start]].all())
        ]
        distances = [abs(token - end) for token in free]
        moved.append(free[distances.index(min(distances))] if free else end)
    return [*moved, ends[-1]]
