"""A linear baseline trained on the same rows as the model.

The baseline is a linear support vector machine on TF-IDF features of words and word bigrams (Wang
and Manning 2012, "Baselines and Bigrams"), or ridge regression for a regression task. For more than
MANY_LABELS labels it is the similarity to the mean of the texts of a label (Rocchio 1971), because
each label needs a support vector machine. Texts are sampled to bound the time. In
scripts without spaces each character counts as a word, so texts of several languages can be mixed.

Shapes: N rows, C labels, F features.
"""

import random
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source
from pipework.data.kept_rows import spread
from pipework.progress import Progress
from pipework.scoring.evaluation import label_array
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task

Matrix = Any  # scipy's sparse [N, F]: it has no types
ROWS = 200_000
FITS = 4_000_000  # rows times labels: one binary classifier is fitted per label
FEWEST_ROWS = 20_000
CHARACTERS = 40_000_000  # of the train texts: 30 s for their features
MAX_COSINES = 4_000_000  # computed at a time
MANY_ROWS = 10_000
MANY_LABELS = 1_000
CENTROIDS = "nearest mean"
# Thai, Lao, Burmese, Khmer, Japanese and Chinese have no spaces between words.
NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
WORD = rf"[{NO_SPACES}]|[^\W{NO_SPACES}]+|[^\w\s]"
ENTITY_MARKS = (" entityone ", " entitytwo ")
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearBaseline:
    """The scores and logits of a linear model trained on the train rows.

    Attributes:
        name: the description of the model and its features.
        split: the scored split: test, or dev if there is no test split.
        evaluation: its scores on this split.
        outputs: its outputs for this split: distances from the separating planes, cosines of the
            texts and the mean texts of the labels, or values.
        task: the task, with thresholds chosen for the baseline if the task is multi-label.
        rows: number of train rows that it was fitted on, of `all_rows`.
        seconds: time to read, fit and predict.
    """

    name: str
    split: str
    evaluation: Evaluation
    outputs: Outputs
    task: Task
    rows: int
    all_rows: int
    seconds: float

    @property
    def trained_on(self) -> str:
        """The train rows that it was fitted on."""
        if self.rows == self.all_rows:
            return "the same rows"
        return f"{self.rows:,} of the {self.all_rows:,} rows"


def linear_baseline(
    sources: Mapping[str, Source], task: Task, progress: Progress
) -> LinearBaseline:
    """Fit a linear model on the train rows, or a sample of them, and score it.

    It is scored on test if there is such a split: the model's checkpoint was chosen on dev, where
    its score is therefore too good for a comparison.

    Raises:
        DataError: as `Source.rows`, and for a label that is not in the task.
        ImportError: scikit-learn is not installed.
    """
    start = time.perf_counter()
    with progress.stage("fit the linear baseline", len(task.labels) + 2, "steps"):
        train, split = sources["train"], comparison_split(sources)
        examples, all_rows = sample(train.rows(), _max_rows(len(task.labels)))
        examples = _of_limited_length(examples)
        names = ("dev", split) if task.many_labels else (split,)  # dev for thresholds
        scored = {name: list(sources[name].rows()) for name in names if name in sources}
        truth_N = label_array(examples, task, str(train.path))
        wanted = {
            name: label_array(rows, task, str(sources[name].path)) for name, rows in scored.items()
        }
        progress.advance(1)
        features = _Features(pair=examples[0].text_pair is not None, rows=len(examples))
        x_NF = features.fit(examples)
        scored_NF = features.of([*chain(*scored.values())])
        progress.advance(1)
        logits_NC = _fit_and_predict(x_NF, truth_N, scored_NF, task, progress)
        chosen_on = next(iter(scored))  # dev, if there is such a split
        task = task.with_thresholds(logits_NC[: len(scored[chosen_on])], wanted[chosen_on])
        outputs = Outputs.of(logits_NC[-len(scored[split]) :])
    return LinearBaseline(
        name=f"{CENTROIDS if len(task.labels) > MANY_LABELS else task.baseline} on {features.name}",
        split=split,
        evaluation=task.evaluate(outputs, wanted[split]),
        outputs=outputs,
        task=task,
        rows=len(examples),
        all_rows=all_rows,
        seconds=time.perf_counter() - start,
    )


def _max_rows(labels: int) -> int:
    if labels > MANY_LABELS:
        return ROWS  # nothing is fitted per label
    return min(ROWS, max(FEWEST_ROWS, FITS // labels))


def _of_limited_length(examples: list[Example]) -> list[Example]:
    """Return evenly spaced examples with about CHARACTERS characters, or all if they have fewer."""
    characters = sum(len(row.text) + len(row.text_pair or "") for row in examples)
    if characters <= CHARACTERS:
        return examples
    return [
        examples[row] for row in spread(len(examples), len(examples) * CHARACTERS // characters)
    ]


def comparison_split(splits: Collection[str]) -> str:
    """Return the split on which the model and the baseline are compared."""
    return "test" if "test" in splits else "dev"


def sample(rows: Iterable[Example], size: int) -> tuple[list[Example], int]:
    """Return a uniform sample of at most `size` rows, and the number of all rows.

    Algorithm R (Vitter 1985, "Random Sampling with a Reservoir") with a fixed seed.
    """
    generator, iterator = random.Random(SEED), iter(rows)  # noqa: S311  (not security-relevant)
    reservoir = list(islice(iterator, size))
    count = len(reservoir)
    for row in iterator:
        count += 1
        index = generator.randrange(count)
        if index < size:
            reservoir[index] = row
    return reservoir, count


class _Features:
    """TF-IDF features of texts.

    A text pair has the features of both texts (so their order counts), the absolute difference of
    the two, and their cosine similarity.
    """

    def __init__(self, *, pair: bool, rows: int) -> None:
        """Create features for a number of train rows."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (needs an extra)

        self._pair = pair
        self._vectorizer = TfidfVectorizer(
            token_pattern=WORD,
            ngram_range=(1, 2),
            min_df=2 if rows > MANY_ROWS else 1,  # halves the time, same accuracy
            sublinear_tf=True,
            dtype=np.float32,
        )
        both = " of both texts, their difference and cosine similarity" if self._pair else ""
        self.name = f"TF-IDF of words and word bigrams{both}"

    def fit(self, examples: Sequence[Example]) -> Matrix:
        """Learn the words and their weights, and return the features of the examples."""
        return self._columns(self._vectorizer.fit_transform(self._texts(examples)))

    def of(self, examples: Sequence[Example]) -> Matrix:
        """Return features float32 [N, F]."""
        return self._columns(self._vectorizer.transform(self._texts(examples)))

    def _texts(self, examples: Sequence[Example]) -> list[str]:
        """Return all first texts, then all second texts."""
        seconds = [example.text_pair or "" for example in examples] if self._pair else []
        return [*map(_mark_entities, examples), *seconds]

    def _columns(self, texts_TF: Matrix) -> Matrix:
        if not self._pair:
            return texts_TF
        from scipy import sparse  # noqa: PLC0415  (needs an extra)

        rows = texts_TF.shape[0] // 2
        first_NF, second_NF = texts_TF[:rows], texts_TF[rows:]
        cosine_N1 = sparse.csr_matrix(first_NF.multiply(second_NF).sum(axis=1))
        columns = [first_NF, second_NF, abs(first_NF - second_NF), cosine_N1]
        return sparse.hstack(columns, format="csr")


def _mark_entities(example: Example) -> str:
    """Return the text with its entities enclosed in marker words."""
    text = example.text
    if example.entities is None:
        return text
    marks = zip(example.entities, ENTITY_MARKS, strict=True)
    for (start, end), mark in sorted(marks, reverse=True):  # right to left: offsets stay valid
        text = text[:start] + mark + text[start:end] + mark + text[end:]
    return text


def _fit_and_predict(
    x_NF: Matrix, truth_N: NDArray[np.generic], dev_NF: Matrix, task: Task, progress: Progress
) -> NDArray[np.float32]:
    if len(task.labels) > MANY_LABELS:
        return _nearest_mean(x_NF, truth_N, dev_NF, task, progress)
    if task.has_labels:
        return _one_vs_rest(x_NF, task.true_labels(truth_N), dev_NF, progress)
    from sklearn.linear_model import Ridge  # noqa: PLC0415  (needs an extra)

    values_N = Ridge(alpha=1.0, random_state=SEED).fit(x_NF, truth_N).predict(dev_NF)
    progress.advance(1)
    return np.asarray(values_N, np.float32)[:, None]


def _one_vs_rest(
    x_NF: Matrix, true_NC: NDArray[np.bool_], dev_NF: Matrix, progress: Progress
) -> NDArray[np.float32]:
    logits_NC = np.empty((dev_NF.shape[0], true_NC.shape[1]), np.float32)
    for label, true_N in enumerate(true_NC.T):
        logits_NC[:, label] = _binary_svm(x_NF, true_N, dev_NF)
        progress.advance(1)
    return logits_NC


def _nearest_mean(
    x_NF: Matrix, truth_N: NDArray[np.generic], dev_NF: Matrix, task: Task, progress: Progress
) -> NDArray[np.float32]:
    """Return the cosines of each dev row and the mean text of each label."""
    # In blocks, because sparse matrices with few zeros take 12 bytes per value.
    from scipy import sparse  # noqa: PLC0415  (needs an extra)
    from sklearn.preprocessing import normalize  # noqa: PLC0415  (needs an extra)

    labels, rows = len(task.labels), dev_NF.shape[0]
    true_NC = sparse.vstack(
        [
            sparse.csr_matrix(task.true_labels(truth_N[part]))
            for part in _blocks(len(truth_N), labels)
        ]
    )
    means_CF = normalize(true_NC.T.astype(np.float32) @ x_NF)
    progress.advance(labels)
    cosines_NC = np.empty((rows, labels), np.float32)
    for part in _blocks(rows, labels):
        cosines_NC[part] = (normalize(dev_NF[part]) @ means_CF.T).toarray()
    return cosines_NC


def _blocks(rows: int, labels: int) -> list[slice]:
    size = max(1, MAX_COSINES // labels)
    return [slice(start, start + size) for start in range(0, rows, size)]


def _binary_svm(x_NF: Matrix, true_N: NDArray[np.bool_], dev_NF: Matrix) -> NDArray[np.float64]:
    """Return the distance of each dev row from the separating plane of one label, float [N]."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  (needs an extra)
    from sklearn.svm import LinearSVC  # noqa: PLC0415  (needs an extra)

    if true_N.all() or not true_N.any():  # only one class: nothing to separate
        return np.full(dev_NF.shape[0], 1.0 if true_N.any() else -1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = LinearSVC(random_state=SEED).fit(x_NF, true_N)
    return np.asarray(classifier.decision_function(dev_NF), np.float64)
