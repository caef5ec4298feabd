"""Texts for a run that has no dev rows: those that come with the project, in the run's form."""

from pipework.data.examples import Example, Source
from pipework.data.readers import Columns
from pipework.run_folder.manifest import Input
from pipework.train.config.run_config import SAMPLE


def stand_in(given: Input) -> list[Example]:
    """Return the sample's dev texts as inputs of the fields that a run takes, without labels.

    A pair is a text and the next one; entities are the two halves of a text.
    """
    texts = [one.text for one in Source(path=SAMPLE / "dev.tsv", columns=Columns()).rows()]
    return [
        Example(
            text=text,
            text_pair=following if given.pair else None,
            entities=_halves(text) if given.marked else None,
        )
        for text, following in zip(texts, [*texts[1:], texts[0]], strict=True)
    ]


def _halves(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    middle = len(text) // 2
    return (0, middle), (middle, len(text))
