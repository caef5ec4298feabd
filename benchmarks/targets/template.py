"""Any server that answers texts in JSON: what it wants to hear is a template."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipework.benchmarks.targets.http import HttpTarget
from pipework.benchmarks.targets.rest import JSON
from pipework.data.examples import Example
from pipework.errors import ConfigError

SEVERAL, ONE = "$TEXTS", "$TEXT"
PAIRS, PAIR = "$TEXT_PAIRS", "$TEXT_PAIR"
HINT = """for example --template '{"inputs": "$TEXTS"}', or "$TEXT" where one is asked at a time"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateTarget(HttpTarget):
    """A server asked by POST with JSON, and answering with JSON.

    In the template the string "$TEXTS" stands for the array of the texts and "$TEXT_PAIRS" for
    that of their pairs; "$TEXT" and "$TEXT_PAIR" for those of a request of one.
    """

    template: str

    def __post_init__(self) -> None:
        """Check the template.

        Raises:
            ConfigError: it is no JSON, or has no place for texts.
        """
        try:
            places = set(_strings(json.loads(self.template)))
        except ValueError as error:
            message = f"{self.template} is not JSON: {error}"
            raise ConfigError(message, HINT) from error
        if not places & {SEVERAL, ONE}:
            message = f'{self.template} has no place for texts: expected "{SEVERAL}" or "{ONE}"'
            raise ConfigError(message, HINT)

    @property
    def path(self) -> str:
        """Where it is asked."""
        return self.address.path or "/"

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a request.

        Raises:
            ConfigError: the template has no place for several texts, or for pairs.
        """
        template = json.loads(self.template)
        places = set(_strings(template))
        if len(examples) > 1 and SEVERAL not in places:
            message = f"{self.template} has a place for one text, found {len(examples)}"
            raise ConfigError(message, f'write "{SEVERAL}", or send one a request: --batch 1')
        if examples[0].text_pair is not None and not places & {PAIRS, PAIR}:
            message = f"{self.template} has no place for the second text of a pair"
            raise ConfigError(message, f'expected "{PAIRS}" or "{PAIR}"')
        texts, pairs = [one.text for one in examples], [one.text_pair for one in examples]
        values = {SEVERAL: texts, ONE: texts[0], PAIRS: pairs, PAIR: pairs[0]}
        content = json.dumps(_filled(template, values), ensure_ascii=False)
        return self.post(content.encode(), JSON)

    def check(self, answer: bytes, count: int) -> str:
        """Return the model that the answer names, or else where it was asked.

        Raises:
            PipeError: it is no JSON, or one to several texts that holds no list of so many.
        """
        with suppress(ValueError):
            content = json.loads(answer)
            if count == 1 or count in _lengths(content):
                named = content.get("model") if isinstance(content, Mapping) else None
                return named if isinstance(named, str) else self.shown
        expected = "JSON" if count == 1 else f"list of {count}"
        raise self.wrong(expected)


def _strings(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [one for inner in value for one in _strings(inner)]
        case dict():
            return [one for inner in value.values() for one in _strings(inner)]
        case _:
            return []


def _filled(value: object, values: Mapping[str, object]) -> object:
    match value:
        case str():
            return values.get(value, value)
        case list():
            return [_filled(inner, values) for inner in value]
        case dict():
            return {name: _filled(inner, values) for name, inner in value.items()}
        case _:
            return value


def _lengths(value: object) -> set[int]:
    """Return the lengths of all lists in a value."""
    match value:
        case list():
            return {len(value)}.union(*map(_lengths, value))
        case dict():
            return set().union(*map(_lengths, value.values()))
        case _:
            return set()
