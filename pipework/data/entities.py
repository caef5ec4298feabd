"""The two entities of a text: marked in it by tags, or given beside it as character spans."""

import re
from collections.abc import Sequence

from pipework.errors import InputError

Span = tuple[int, int]
Spans = tuple[Span, Span]
TAGS = ("<e1>", "</e1>", "<e2>", "</e2>")
TAG = re.compile("|".join(TAGS))
HINT = "mark both entities, <e1>..</e1> and <e2>..</e2>, each once and side by side"


def read_marks(text: str) -> tuple[str, Spans]:
    """Take the tags out of a marked text and return it with the spans of its entities.

    The entities may stand in either order. Anything but these four tags is text: `<`, `$`, `<e3>`.

    Raises:
        InputError: a tag is missing, stands twice or in a wrong place, or marks no text.
    """
    found = list(TAG.finditer(text))
    names = [match[0] for match in found]
    for tag in TAGS:
        if names.count(tag) != 1:
            message = f"expected {tag} once, found it {names.count(tag)} times"
            raise InputError(message, HINT)
    if names not in ([*TAGS], [*TAGS[2:], *TAGS[:2]]):
        message = f"the tags stand in the order {' '.join(names)}"
        raise InputError(message, HINT)
    # What was before a tag moves left by the length of the tags before it.
    places, removed = {}, 0
    for match in found:
        places[match[0]] = match.start() - removed
        removed += len(match[0])
    start1, end1, start2, end2 = (places[tag] for tag in TAGS)
    plain = TAG.sub("", text)
    return plain, check_spans(plain, ((start1, end1), (start2, end2)))


def check_spans(text: str, spans: Sequence[Sequence[int]]) -> Spans:
    """Return the spans [start, end) of two entities, without the white space at their ends.

    Raises:
        InputError: a span leaves the text or holds none of it, or the two overlap.
    """
    first, second = (
        _trimmed(text, name, *span) for name, span in zip(("e1", "e2"), spans, strict=True)
    )
    if first[0] < second[1] and second[0] < first[1]:
        message = f"the entities overlap: characters {list(first)} and {list(second)}"
        raise InputError(message, "give two entities that stand side by side")
    return first, second


def _trimmed(text: str, name: str, start: int, end: int) -> Span:
    if not 0 <= start < end <= len(text):
        message = f"entity {name} is [{start}, {end}], in a text of {len(text)} characters"
        raise InputError(message, "expected 0 <= start < end <= the length, counted in characters")
    held = text[start:end]
    if not held.strip():
        message = f"entity {name} holds no text"
        raise InputError(message, "an entity is at least one character")
    return start + len(held) - len(held.lstrip()), end - len(held) + len(held.rstrip())
