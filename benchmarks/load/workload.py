"""Workloads: texts or pairs to send, from a data file or synthetic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from pipework.benchmarks.results_schema.level import WorkloadSummary
from pipework.data.examples import Example, Source
from pipework.errors import DataError
from pipework.text.encoding import TextEncoder

MAX_TEXTS = 20_000
SYNTHETIC_TEXTS = 2_000
MEAN_WORDS = 20.0
# Shape of the log-normal length distribution: 0.6 gives a p95 of 2.2 times the mean.
SIGMA = 0.6
MAX_WORDS = 200
WORDS = """
    the a of in on with for after before market team city school film game new old first last
    report price water player company train road weather music research phone doctor house law
    minister season record result opens closes wins loses says plans finds builds sells buys
    grows falls quickly slowly today tomorrow again never people country million percent
""".split()  # noqa: SIM905  (more readable than a list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Inputs in the order in which they are sent, `texts_per_request` per request.

    Attributes:
        source: description of the source of the inputs.
        examples: the inputs.
        texts_per_request: inputs per request, None if requests differ in size, as in a trace.
        sizes: inputs of each request if `texts_per_request` is None.
        seed: seed of the inputs and their order.
        mean_tokens: mean number of tokens per input, None if not counted.
    """

    source: str
    examples: tuple[Example, ...]
    texts_per_request: int | None
    sizes: tuple[int, ...] = ()
    seed: int
    mean_tokens: float | None = None

    @classmethod
    def read(cls, source: Source, *, texts_per_request: int, seed: int) -> "Workload":
        """Read the first rows of a data file (at most 20,000) and shuffle them by the seed.

        Raises:
            DataError: the file cannot be read or contains no rows.
        """
        rows = list(islice(source.rows(), MAX_TEXTS))
        if not rows:
            message = f"{source.path} contains no rows"
            raise DataError(message, "check the path and the format")
        order = np.random.default_rng(seed).permutation(len(rows))
        examples = tuple(rows[index] for index in order)
        return cls(
            source=source.path.name,
            examples=examples,
            texts_per_request=texts_per_request,
            seed=seed,
        )

    @classmethod
    def synthetic(
        cls,
        *,
        texts_per_request: int,
        seed: int,
        fields: Sequence[str] = ("text",),
        mean_words: float = MEAN_WORDS,
    ) -> "Workload":
        """Generate 2,000 inputs for a model with these fields: texts, pairs, or marked entities.

        Text lengths are log-normal with mean `mean_words`; marked entities add one word each.
        """
        texts = _texts(np.random.default_rng(seed), mean_words)
        template = "<e1>city</e1> {} <e2>water</e2>" if "entities" in fields else "{}"
        examples = tuple(
            Example(
                text=template.format(next(texts)),
                text_pair=next(texts) if "text_pair" in fields else None,
            )
            for _ in range(SYNTHETIC_TEXTS)
        )
        return cls(
            source=f"synthetic, log-normal, mean {mean_words:g} words",
            examples=examples,
            texts_per_request=texts_per_request,
            seed=seed,
        )

    @property
    def pair(self) -> bool:
        """Whether the inputs are pairs of texts."""
        return self.examples[0].text_pair is not None

    @property
    def requests(self) -> list[Sequence[Example]]:
        """Inputs of each request; they are repeated if there are fewer than a request needs."""
        repeated = cycle(self.examples)
        sizes = self.sizes
        if self.texts_per_request is not None:
            count = max(1, len(self.examples) // self.texts_per_request)
            sizes = (self.texts_per_request,) * count
        return [list(islice(repeated, size)) for size in sizes]

    def with_token_counts(self, encoder: TextEncoder) -> "Workload":
        """Return a copy with `mean_tokens` as counted by the encoder, truncation included."""
        lengths = [len(encoding) for encoding in encoder.encode(self.examples)]
        return replace(self, mean_tokens=round(float(np.mean(lengths)), 2))

    def tokens(self, texts: float) -> float | None:
        """Return the expected number of tokens in `texts` texts, None if tokens are not counted."""
        return None if self.mean_tokens is None else round(texts * self.mean_tokens, 1)

    def summary(self) -> WorkloadSummary:
        """Return the description stored in a result."""
        lengths = [len(example.text) + len(example.text_pair or "") for example in self.examples]
        return WorkloadSummary(
            source=self.source,
            texts=len(self.examples),
            texts_per_request=self.texts_per_request,
            pair=self.pair,
            mean_length=round(float(np.mean(lengths)), 1),
            p95_length=round(float(np.percentile(lengths, 95)), 1),
            seed=self.seed,
            mean_tokens=self.mean_tokens,
        )


def _texts(random: np.random.Generator, mean_words: float) -> Iterator[str]:
    location = np.log(mean_words) - SIGMA**2 / 2  # the mean of a log-normal is exp(location + s²/2)
    while True:
        words = int(np.clip(round(random.lognormal(location, SIGMA)), 1, MAX_WORDS))
        yield " ".join(WORDS[index] for index in random.integers(len(WORDS), size=words))
