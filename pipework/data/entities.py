"""The two entities of a text, given by tags in the text or by character spans."""

import re
from collections.abc import Sequence

from pipework.errors import InputError

Span = tuple[int, int]
Spans = tuple[Span, Span]
TAGS = ("<e1>", "</e1>", "<e2>", "</e2>")
TAG = re.compile("|".join(TAGS))
HINT = "mark both entities, <e1>..</e1> and <e2>..</e2>, each once and without nesting"


def parse_marked_text(text: str) -> tuple[str, Spans]:
    """Remove the tags from a marked text; return the text and the spans of its entities.

    The entities may be in either order. All but these four tags is text: `<`, `$`, `<e3>`.

    Raises:
        InputError: a tag is missing, duplicated or misplaced, or an entity has no text.
    """
    matches = list(TAG.finditer(text))
    names = [match[0] for match in matches]
    for tag in TAGS:
        if names.count(tag) != 1:
            message = f"expected {tag} once, found it {names.count(tag)} times"
            raise InputError(message, HINT)
    if names not in ([*TAGS], [*TAGS[2:], *TAGS[:2]]):
        message = f"the tags are in the order {' '.join(names)}"
        raise InputError(message, HINT)
    # The position of a tag in the plain text: subtract the length of the tags before it.
    positions, removed = {}, 0
    for match in matches:
        positions[match[0]] = match.start() - removed
        removed += len(match[0])
    start1, end1, start2, end2 = (positions[tag] for tag in TAGS)
    plain = TAG.sub("", text)
    return plain, check_spans(plain, ((start1, end1), (start2, end2)))


def parse_spans(value: object, column: str | int) -> list[list[int]]:
    """Return the value of a column as [[start, end], [start, end]].

    Raises:
        InputError: it is another value.
    """
    pairs = value if isinstance(value, list) else []
    spans = [
        [edge for edge in pair if type(edge) is int] if isinstance(pair, list) else []
        for pair in pairs
    ]
    if spans != pairs or [len(span) for span in spans] != [2, 2]:
        message = f"expected [[start, end], [start, end]] at {column!r}, found {value!r}"
        raise InputError(message, "use jsonl and give the character spans of e1 and e2")
    return spans


def check_spans(text: str, spans: Sequence[Sequence[int]]) -> Spans:
    """Return the spans [start, end) of two entities without surrounding white space.

    Raises:
        InputError: a span is outside the text or empty, or the spans overlap.
    """
    first, second = (
        _trimmed(text, name, *span) for name, span in zip(("e1", "e2"), spans, strict=True)
    )
    if first[0] < second[1] and second[0] < first[1]:
        message = f"the entities overlap: characters {list(first)} and {list(second)}"
        raise InputError(message, "give two entities that do not overlap")
    return first, second


def _trimmed(text: str, name: str, start: int, end: int) -> Span:
    if not 0 <= start < end <= len(text):
        message = f"entity {name} is [{start}, {end}], in a text of {len(text)} characters"
        raise InputError(message, "expected 0 <= start < end <= length, in characters")
    entity = text[start:end]
    if not entity.strip():
        message = f"entity {name} holds no text"
        raise InputError(message, "an entity needs at least one character")
    return start + len(entity) - len(entity.lstrip()), end - len(entity) + len(entity.rstrip())
