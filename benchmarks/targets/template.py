"""Target for any JSON endpoint; a template describes its request format."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipework.benchmarks.targets.http import JSON, HttpTarget
from pipework.data.examples import Example
from pipework.errors import ConfigError

TEXTS, TEXT = "$TEXTS", "$TEXT"
PAIRS, PAIR = "$TEXT_PAIRS", "$TEXT_PAIR"
# A JSON string that is a placeholder, and no key.
PLACEHOLDER = re.compile(r'"(\$(?:TEXTS|TEXT|TEXT_PAIRS|TEXT_PAIR))"(?!\s*:)')
HINT = """for example --template '{"inputs": "$TEXTS"}', or "$TEXT" for one text per request"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateTarget(HttpTarget):
    """Server that receives and returns JSON.

    In the template, the strings "$TEXTS" and "$TEXT_PAIRS" are replaced by the arrays of the texts
    and of their pair texts; "$TEXT" and "$TEXT_PAIR" by the texts of a request with one input.
    """

    template: str

    def __post_init__(self) -> None:
        """Check the template.

        Raises:
            ConfigError: the template is not JSON or has no placeholder for texts.
        """
        try:
            json.loads(self.template)
        except ValueError as error:
            message = f"{self.template} is not JSON: {error}"
            raise ConfigError(message, HINT) from error
        if not self._placeholders & {TEXTS, TEXT}:
            message = f'{self.template} has no placeholder: expected "{TEXTS}" or "{TEXT}"'
            raise ConfigError(message, HINT)

    @property
    def _placeholders(self) -> set[str]:
        return set(PLACEHOLDER.findall(self.template))

    @property
    def path(self) -> str:
        """Path of its endpoint."""
        return self.address.path or "/"

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a complete request.

        Raises:
            ConfigError: the template has no placeholder for several texts, or for pairs.
        """
        if len(examples) > 1 and TEXTS not in self._placeholders:
            message = f"{self.template} takes one text per request, found {len(examples)}"
            raise ConfigError(message, f'use "{TEXTS}", or send one text per request: --batch 1')
        if examples[0].text_pair is not None and not self._placeholders & {PAIRS, PAIR}:
            message = f"{self.template} has no placeholder for the second text of a pair"
            raise ConfigError(message, f'expected "{PAIRS}" or "{PAIR}"')
        texts = [example.text for example in examples]
        pairs = [example.text_pair for example in examples]
        values = {TEXTS: texts, TEXT: texts[0], PAIRS: pairs, PAIR: pairs[0]}

        def fill(match: re.Match[str]) -> str:
            return json.dumps(values[match[1]], ensure_ascii=False)

        return self.post(PLACEHOLDER.sub(fill, self.template).encode(), JSON)

    def check(self, response: bytes, count: int) -> str:
        """Return the value of "model" in the response, or else the URL.

        Raises:
            PipeError: the response is not JSON, or for several texts has no list of `count` items.
        """
        with suppress(ValueError):
            content = json.loads(response)
            if count == 1 or count in _lengths(content):
                model = content.get("model") if isinstance(content, Mapping) else None
                return model if isinstance(model, str) else self.display_url
        expected = "JSON" if count == 1 else f"a list of {count}"
        raise self.unexpected_response(expected)


def _lengths(value: object) -> set[int]:
    """Return the lengths of all lists in a value."""
    match value:
        case list():
            return {len(value)}.union(*map(_lengths, value))
        case dict():
            return set().union(*map(_lengths, value.values()))
        case _:
            return set()
