"""The question to ask of every fine-tuned model: does it beat a linear one on the same rows?

The baseline is a linear support vector machine on TF-IDF features, as strong as a baseline of
seconds gets (Wang and Manning 2012, "Baselines and Bigrams"); ridge regression for numbers. The
features are words and pairs of neighbours. In scripts without spaces each character is a word, so
that texts of several languages may be mixed.

Shapes: N rows, C labels, F features.
"""

import random
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source
from pipework.progress import Progress
from pipework.run_folder.task import Task, TaskKind, no_classifier
from pipework.scoring.evaluation import Evaluation, evaluate, truth
from pipework.scoring.predictions import choose_thresholds

Matrix = Any  # scipy's sparse [N, F]: it has no types
ROWS = 200_000
FITS = 4_000_000  # rows times labels, each of which is fitted alone
FEWEST_ROWS = 20_000
MANY_ROWS = 10_000
# Thai, Lao, Burmese, Khmer, Japanese and Chinese put no space between words.
NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
WORD = rf"[{NO_SPACES}]|[^\W{NO_SPACES}]+|[^\w\s]"
ENTITY_MARKS = (" entityone ", " entitytwo ")
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Baseline:
    """What a linear model reaches on the rows that the model was trained on.

    Attributes:
        name: the features and the model, in words.
        evaluation: its scores on dev.
        logits_NC: its answers there, float32: distances from the separating planes, or values.
        task: the task, with thresholds of its own where the task has thresholds.
        rows: how many train rows it saw, of `all_rows`.
        seconds: what reading, fitting and answering took.
    """

    name: str
    evaluation: Evaluation
    logits_NC: NDArray[np.float32]
    task: Task
    rows: int
    all_rows: int
    seconds: float


def linear_baseline(train: Source, dev: Source, task: Task, progress: Progress) -> Baseline:
    """Fit a linear model on the train rows, or a sample of them, and score it on dev.

    Raises:
        DataError: as `Source.rows`, and for a label that the task does not know.
        ImportError: scikit-learn is not installed.
    """
    start = time.perf_counter()
    progress.begin("fit a linear model to compare with", 3, "steps")
    most = min(ROWS, max(FEWEST_ROWS, FITS // len(task.labels)))
    examples, all_rows = sample(train.rows(), most)
    tested = list(dev.rows())
    truth_N, wanted = truth(examples, task, str(train.path)), truth(tested, task, str(dev.path))
    progress.advance(1)
    features = _Features(examples)
    x_NF, dev_NF = features.of(examples), features.of(tested)
    progress.advance(1)
    logits_NC = _fit_and_answer(x_NF, truth_N, dev_NF, task)
    if task.kind is TaskKind.MULTI_LABEL:
        task = task.model_copy(update={"thresholds": choose_thresholds(logits_NC, wanted)})
    progress.advance(1)
    progress.end()
    kind = "ridge regression" if task.kind is TaskKind.REGRESSION else "a linear SVM"
    return Baseline(
        name=f"{kind} on {features.name}",
        evaluation=evaluate(logits_NC, wanted, task),
        logits_NC=logits_NC,
        task=task,
        rows=len(examples),
        all_rows=all_rows,
        seconds=time.perf_counter() - start,
    )


def sample(rows: Iterable[Example], size: int) -> tuple[list[Example], int]:
    """Return at most `size` rows, each with the same chance, and how many there are.

    Algorithm R (Vitter 1985, "Random Sampling with a Reservoir"), the same rows every time.
    """
    chance, iterator = random.Random(SEED), iter(rows)  # noqa: S311  (no secret)
    kept = list(islice(iterator, size))
    count = len(kept)
    for row in iterator:
        count += 1
        place = chance.randrange(count)
        if place < size:
            kept[place] = row
    return kept, count


class _Features:
    """Texts as TF-IDF features.

    A pair gives both texts, each with features of its own, so that their order counts; how they
    differ, feature by feature; and their cosine.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        """Learn the features that the examples have."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (needs an extra)

        texts = [_marked(example) for example in examples]
        self._pair = examples[0].text_pair is not None
        texts += [example.text_pair or "" for example in examples] if self._pair else []
        self._vectorizer = TfidfVectorizer(
            token_pattern=WORD,
            ngram_range=(1, 2),
            min_df=2 if len(examples) > MANY_ROWS else 1,  # half the time, and no less accurate
            sublinear_tf=True,
            dtype=np.float32,
        )
        self._vectorizer.fit(texts)
        both = " of both texts, their difference and their cosine" if self._pair else ""
        self.name = f"TF-IDF of words and pairs of words{both}"

    def of(self, examples: Sequence[Example]) -> Matrix:
        """Return features float32 [N, F]."""
        first_NF = self._vectorizer.transform([_marked(example) for example in examples])
        if not self._pair:
            return first_NF
        from scipy import sparse  # noqa: PLC0415  (needs an extra)

        second_NF = self._vectorizer.transform([example.text_pair or "" for example in examples])
        cosine_N1 = sparse.csr_matrix(first_NF.multiply(second_NF).sum(axis=1))
        columns = [first_NF, second_NF, abs(first_NF - second_NF), cosine_N1]
        return sparse.hstack(columns, format="csr")


def _marked(example: Example) -> str:
    """Return the text, its entities between words that no text holds."""
    text = example.text
    if example.entities is None:
        return text
    marks = zip(example.entities, ENTITY_MARKS, strict=True)
    for (start, end), mark in sorted(marks, reverse=True):  # from the right: places stay true
        text = text[:start] + mark + text[start:end] + mark + text[end:]
    return text


def _fit_and_answer(
    x_NF: Matrix, truth_N: NDArray[np.generic], dev_NF: Matrix, task: Task
) -> NDArray[np.float32]:
    match task.kind:
        case TaskKind.REGRESSION:
            from sklearn.linear_model import Ridge  # noqa: PLC0415  (needs an extra)

            values_N = Ridge(alpha=1.0, random_state=SEED).fit(x_NF, truth_N).predict(dev_NF)
            return np.asarray(values_N, np.float32)[:, None]
        case TaskKind.SINGLE_LABEL:
            true_NC = truth_N[:, None] == np.arange(len(task.labels))
            return _each_against_rest(x_NF, true_NC, dev_NF)
        case TaskKind.PRETRAIN:
            raise no_classifier()
        case TaskKind.MULTI_LABEL:
            return _each_against_rest(x_NF, np.asarray(truth_N, np.bool_), dev_NF)


def _each_against_rest(
    x_NF: Matrix, true_NC: NDArray[np.bool_], dev_NF: Matrix
) -> NDArray[np.float32]:
    columns = [_one_against_rest(x_NF, true_N, dev_NF) for true_N in true_NC.T]
    return np.stack(columns, axis=1).astype(np.float32)


def _one_against_rest(
    x_NF: Matrix, true_N: NDArray[np.bool_], dev_NF: Matrix
) -> NDArray[np.float64]:
    """Return for each row of dev its distance from the plane around one label, float [N]."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  (needs an extra)
    from sklearn.svm import LinearSVC  # noqa: PLC0415  (needs an extra)

    if true_N.all() or not true_N.any():  # nothing to tell apart
        return np.full(dev_NF.shape[0], 1.0 if true_N.any() else -1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = LinearSVC(random_state=SEED).fit(x_NF, true_N)
    return np.asarray(found.decision_function(dev_NF), np.float64)
