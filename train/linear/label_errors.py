"""Find train rows whose label is probably wrong.

Confident learning (Northcutt et al. 2021, https://arxiv.org/abs/1911.00068) as cleanlab computes
it, with the probabilities of linear models that were fitted to other rows.

Shapes: N rows, C classes.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.errors import ConfigError, DataError
from pipework.progress import Progress
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.train.config.run_config import Config, load_config
from pipework.train.data.token_cache import TokenSet, open_token_cache
from pipework.train.data_report.csv_file import check_csv_file, write_csv_file
from pipework.train.linear.features import NgramFeatures
from pipework.train.linear.fit import LinearWeights
from pipework.train.linear.model import fitted_rows, new_model
from pipework.train.model.bag_of_ngrams import BagOfNgrams
from pipework.train.prepare import prepare

FOLDS = 5
SHOWN = 5  # rows in the terminal
SHOWN_CHARACTERS = 60
COLUMNS = ("line", "label", "score", "likely label", "likely score", "text", "text_pair")


@dataclass(frozen=True, kw_only=True)
class LabelErrorsFile:
    """A csv file for train rows of a config whose label is probably wrong."""

    config: Config
    out: Path

    @classmethod
    def of(cls, name: str, overrides: list[str], out: Path) -> "LabelErrorsFile":
        """Check that the file can be written, before the data are read.

        Raises:
            ConfigError: `out` cannot be written, or the task does not have one label for each text.
            ModuleNotFoundError: cleanlab is not installed.
        """
        import_module("cleanlab.filter")
        config = load_config(name, [*overrides, "train.teacher=[]"])
        check_csv_file(out, config.sources().values())
        kind = config.task.type
        if not issubclass(kind, SingleLabelTask) or kind.rows_per_token:
            message = f"--label-errors needs one label for each text, found {config.task.kind}"
            raise ConfigError(message, "leave the option out")
        return cls(config=config, out=out)

    def write(self, progress: Progress) -> None:
        """Write the rows, the least likely label first.

        Raises:
            PipeError: the data are invalid, or have only one label.
        """
        prepared, source = prepare(self.config, progress), self.config.sources()["train"]
        task, length = prepared.task, self.config.model.max_length
        encoder = prepared.encoder(length, type_ids=False)
        tokens = open_token_cache(source, prepared.tokenizer, encoder, task, progress)
        rows_N = np.array(fitted_rows(tokens, len(task.labels)))
        truth_N = tokens.truth[rows_N]
        if len(np.unique(truth_N)) == 1:
            message = f"{source.path} has only the label {task.labels[int(truth_N[0])]}"
            raise DataError(message, "--label-errors needs two labels")
        model = new_model(self.config, task, prepared.loaded).model
        probabilities_NC = out_of_sample(model, tokens, rows_N, task, progress)
        wrong = _label_errors(truth_N, probabilities_NC)
        rows = [*_rows(source, task, rows_N[wrong], truth_N[wrong], probabilities_NC[wrong])]
        found = write_csv_file(self.out, COLUMNS, rows, self.config.sources().values())
        progress.note(
            f"rows of {source.path.name} with a label that is probably wrong, written to "
            f"{self.out}: {found:,} ({len(rows_N):,} of {len(tokens):,} rows were checked)"
        )
        for line, label, score, likely, likely_score, text, _ in rows[:SHOWN]:
            shown = " ".join(str(text).split())[:SHOWN_CHARACTERS]
            progress.note(
                f"  line {line}: {label} {score}, likely {likely} {likely_score}: {shown}"
            )


def out_of_sample(
    model: BagOfNgrams, tokens: TokenSet, rows_N: NDArray[np.int64], task: Task, progress: Progress
) -> NDArray[np.float32]:
    """Return the calibrated probabilities of rows by models of the other rows, [N, C]."""
    x_NF = NgramFeatures.fit(model, tokens, rows_N.tolist()).x_NF
    truth_N = tokens.truth[rows_N]
    # Equal texts are in the same fold: they often have the same wrong label.
    fold_N = np.array([crc32(tokens.encodings([row])[0].ids.tobytes()) % FOLDS for row in rows_N])
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


def _label_errors(
    truth_N: NDArray[np.generic], probabilities_NC: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return the indices of the rows whose label is probably wrong, the least likely label first.

    Rows of labels with less than two rows are never among them.
    """
    from cleanlab.filter import find_label_issues  # noqa: PLC0415  (needs an extra)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of labels with few rows
        found: NDArray[np.int64] = find_label_issues(
            np.asarray(truth_N, np.int64),
            probabilities_NC,
            return_indices_ranked_by="self_confidence",
            n_jobs=1,
        )
    return found


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
