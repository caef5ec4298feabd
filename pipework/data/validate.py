"""What a user sends to a model, held against what the model takes."""

from dataclasses import replace

from pipework.data.entities import check_spans, read_marks
from pipework.data.examples import Example
from pipework.errors import InputError
from pipework.run_folder.manifest import Input


def fitting(example: Example, given: Input, name: str) -> Example:
    """Return an input as the model takes it: for one with entities, the marks taken out.

    Raises:
        InputError: a pair for a model of single texts or the reverse, entities that are missing,
            wrong, or that the model has no use for; the message starts with `name`.
    """
    try:
        return _fitted(example, given)
    except InputError as error:
        message = f"{name}: {error}"
        raise InputError(message, error.hint) from error


def _fitted(example: Example, given: Input) -> Example:
    if given.pair and example.text_pair is None:
        message = "expected a text and a text_pair: this model compares two"
        raise InputError(message, "separate the two by a tab, or send text and text_pair")
    if not given.pair and example.text_pair is not None:
        message = "found a text_pair, but this model takes one text at a time"
        raise InputError(message, "leave out the tab, or the text_pair")
    if not given.marked and example.entities is not None:
        message = "found entities, but this model takes a text alone"
        raise InputError(message, "leave them out")
    if not given.marked:
        return example
    if example.entities is not None:
        return replace(example, entities=check_spans(example.text, example.entities))
    text, entities = read_marks(example.text)
    return replace(example, text=text, entities=entities)
