"""Find train rows whose label is probably wrong.

Confident learning (Northcutt et al. 2021, https://arxiv.org/abs/1911.00068) as cleanlab computes
it, with the probabilities of linear models that were fitted to other rows.

Shapes: N rows, C classes.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.train.config.run_config import load_config
from pipework.train.data.token_cache import TokenSet, open_token_cache
from pipework.train.data_report.csv_file import check_csv_file, write_csv_file
from pipework.train.linear.features import NgramFeatures
from pipework.train.linear.fit import LinearWeights
from pipework.train.linear.model import fitted_rows, new_model
from pipework.train.model.bag_of_ngrams import BagOfNgrams
from pipework.train.prepare import prepare

FOLDS = 5
SEED = 0
COLUMNS = ("line", "label", "score", "likely label", "likely score", "text", "text_pair")


def write_label_errors(name: str, overrides: list[str], out: Path, progress: Progress) -> None:
    """Write the train rows of a config whose label is probably wrong to a csv file, worst first.

    Raises:
        ConfigError: `out` cannot be written, or the task has not one label for each text.
        ModuleNotFoundError: cleanlab is not installed.
        PipeError: the config or the data are invalid.
    """
    from cleanlab.filter import find_label_issues  # noqa: PLC0415  (needs an extra)

    check_csv_file(out)
    config = load_config(name, overrides)
    prepared = prepare(config, progress)
    task, source = prepared.task, config.sources()["train"]
    if not isinstance(task, SingleLabelTask) or task.rows_per_token:
        message = f"--label-errors needs one label for each text, found task.kind = {task.kind}"
        raise ConfigError(message, "leave the option out")
    encoder = prepared.encoder(config.model.max_length, type_ids=False)
    tokens = open_token_cache(source, prepared.tokenizer, encoder, task, progress)
    rows_N = np.array(fitted_rows(tokens, len(task.labels)))
    model = new_model(config, task, prepared.loaded).model
    probabilities_NC = out_of_sample(model, tokens, rows_N, task, progress)
    truth_N = tokens.truth[rows_N]
    wrong: NDArray[np.int64] = find_label_issues(
        np.asarray(truth_N, np.int64),
        probabilities_NC,
        return_indices_ranked_by="self_confidence",
        n_jobs=1,
    )
    rows = _rows(source, task, rows_N[wrong], truth_N[wrong], probabilities_NC[wrong])
    found = write_csv_file(out, COLUMNS, rows, config.sources().values())
    progress.note(
        f"rows with a label that is probably wrong, of {len(rows_N):,} in {source.path.name}, "
        f"written to {out}: {found:,}"
    )


def out_of_sample(
    model: BagOfNgrams, tokens: TokenSet, rows_N: NDArray[np.int64], task: Task, progress: Progress
) -> NDArray[np.float32]:
    """Return the calibrated probabilities of rows by models of the other rows, [N, C]."""
    x_NF = NgramFeatures.fit(model, tokens, rows_N.tolist()).x_NF
    truth_N = tokens.truth[rows_N]
    fold_N = np.random.default_rng(SEED).permutation(len(rows_N)) % FOLDS
    logits_NC = np.zeros((len(rows_N), len(task.labels)), np.float32)
    with progress.stage("fit linear models", FOLDS * len(task.labels), "labels"):
        for fold in range(FOLDS):
            other_N, own_N = fold_N != fold, fold_N == fold
            weights = LinearWeights.fit(x_NF[other_N], truth_N[other_N], task, progress)
            logits_NC[own_N] = x_NF[own_N] @ weights.weights_FC + weights.bias_C
    calibration = task.fit_calibration(logits_NC, truth_N)
    if calibration is not None:
        logits_NC = calibration.apply(Outputs.of(logits_NC)).values
    return task.probabilities(logits_NC)


def _rows(
    source: Source,
    task: Task,
    rows_N: NDArray[np.int64],
    truth_N: NDArray[np.generic],
    probabilities_NC: NDArray[np.float32],
) -> Iterator[tuple[object, ...]]:
    """Yield the values of COLUMNS, in the order of the rows."""
    wanted = set(rows_N.tolist())
    examples = {
        index: example
        for index, example in enumerate(islice(source.rows(), max(wanted, default=-1) + 1))
        if index in wanted
    }
    for row, label, scores_C in zip(rows_N.tolist(), truth_N, probabilities_NC, strict=True):
        example, likely = examples[row], int(scores_C.argmax())
        yield (
            example.line,
            task.labels[int(label)],
            f"{scores_C[int(label)]:.4f}",
            task.labels[likely],
            f"{scores_C[likely]:.4f}",
            example.text,
            example.text_pair or "",
        )
