"""Statistics of labelled spans: those that cannot be learned, and texts made from templates."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipework.data.examples import Example, folded_text
from pipework.tasks.kinds import Words
from pipework.tasks.labels import spans_of
from pipework.text.words import inside_words

FEWEST_LETTERS = 4  # of a template, outside of its spans
LETTER = re.compile(r"\w")


@dataclass(kw_only=True)
class SpanStats:
    """Statistics of the spans of a file, updated chunk by chunk.

    Attributes:
        overlapping: number of spans that overlap an earlier span of their text.
        inside_words: number of spans that begin or end inside of a run of letters or digits.
        templates: the hashes of texts, by the hash of the text with types in place of its spans,
            and their numbers of rows.
    """

    overlapping: int = 0
    inside_words: int = 0
    templates: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, rows: Sequence[Example]) -> None:
        """Add the spans of more rows."""
        for row in rows:
            spans = spans_of(row.label)
            inside = inside_words(row.text, Words.LETTERS) if spans else ()
            masked, letters, done = "", 0, 0
            for start, end, label in spans:
                self.overlapping += start < done
                self.inside_words += bool(inside[start] or inside[end])
                between = row.text[done:start]
                letters += len(LETTER.findall(between))
                masked += f"{between}\0{label}\0"
                done = max(done, end)
            letters += len(LETTER.findall(row.text[done:]))
            if spans and letters >= FEWEST_LETTERS:
                template = folded_text(replace(row, text=masked + row.text[done:]))
                self.templates[template][folded_text(row)] += 1

    def rows_shared_with(self, earlier: "SpanStats") -> int:
        """Return the number of rows whose text differs from one of another file by spans only."""
        return sum(
            rows
            for template in self.templates.keys() & earlier.templates.keys()
            for text, rows in self.templates[template].items()
            if text not in earlier.templates[template]
        )
