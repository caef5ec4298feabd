"""The logs of a training run: log.jsonl, TensorBoard events, train.log, a page of the curves."""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.utils.tensorboard import SummaryWriter

from pipework.run_folder.files import write_atomically
from pipework.tasks.evaluation import Evaluation
from pipework.train.report.curves import LOG, PAGE, lines, read_curves
from pipework.train.report.page import unfinished_html
from pipework.train.report.wrong_predictions import confusion_image

PAGE_SHARE = 0.01  # largest share of the time that the page of an unfinished run takes
TRAIN_LOG = "train.log"  # the first file of a run: a folder without it is never cleared


class NullLogger:
    """Writes nothing: the logger of all processes but the first, with the API of `RunLogger`."""

    def scalars(self, step: int, group: str, values: Mapping[Any, float]) -> None:
        """Log the metrics of a step."""

    def confusion(self, step: int, evaluation: Evaluation) -> None:
        """Log an image of the confusion matrix."""

    def histograms(self, step: int, model: nn.Module) -> None:
        """Log histograms of the weights."""

    def log_text(self, line: str) -> None:
        """Log a line of text."""

    def page(self, figures: Mapping[str, str]) -> None:
        """Update the page of the unfinished run; `figures` are values by name."""


class RunLogger(NullLogger):
    """Writes the logs of a run; a context manager that also logs the traceback of an error."""

    def __init__(
        self, run: Path, *, step: int = 0, elapsed_s: float = 0.0, report: bool = False
    ) -> None:
        """Open the logs of a run folder and drop the lines after `step`, which will be repeated.

        With `report`, report.html shows the curves while the run is not finished.
        """
        self._run = run
        self._report = report
        self._page_due = 0.0
        self._figures: Mapping[str, str] = {}
        self._start = time.monotonic() - elapsed_s
        self._handler = logging.FileHandler(run / TRAIN_LOG, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._log = logging.getLogger("train")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.addHandler(self._handler)
        earlier = [line for line in lines(run) if line["step"] <= step]
        write_atomically(run / LOG, "".join(json.dumps(line) + "\n" for line in earlier).encode())
        self._lines = (run / LOG).open("a", encoding="utf-8")
        self._board = SummaryWriter(str(run), purge_step=step + 1)

    def scalars(self, step: int, group: str, values: Mapping[Any, float]) -> None:
        """Log the metrics of a step to log.jsonl and TensorBoard."""
        seconds = round(time.monotonic() - self._start, 3)
        line = {"step": step, "group": group, "elapsed_s": seconds, **values}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def page(self, figures: Mapping[str, str]) -> None:
        """Update report.html, unless it was updated a moment ago; a failure is only logged."""
        self._figures = figures
        if self._report and time.monotonic() >= self._page_due:
            self._write_page(running=True)

    def _write_page(self, *, running: bool) -> None:
        start = time.monotonic()
        curves = read_curves(self._run)
        html = unfinished_html(self._run.name, self._figures, curves, running=running)
        try:
            write_atomically(self._run / PAGE, html.encode())
        except OSError as error:  # the run matters more than its page
            self._log.warning("%s cannot be written: %s", PAGE, error.strerror)
        now = time.monotonic()
        self._page_due = now + (now - start) / PAGE_SHARE

    def confusion(self, step: int, evaluation: Evaluation) -> None:
        """Log an image of the confusion matrix to TensorBoard."""
        if evaluation.confusion:
            image_HW3 = confusion_image(evaluation)
            self._board.add_image("dev/confusion", image_HW3, step, dataformats="HWC")

    def histograms(self, step: int, model: nn.Module) -> None:
        """Log histograms of the weights to TensorBoard."""
        for name, parameter in model.named_parameters():
            self._board.add_histogram(name, parameter.detach().float().cpu(), step)

    def log_text(self, line: str) -> None:
        """Log a line to train.log."""
        self._log.info(line)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log the traceback of an exception and close the files."""
        with closing(self._lines), closing(self._board), closing(self._handler):
            try:
                if value is not None:
                    self._log.error("the run failed", exc_info=value)
                    if self._figures and self._report:
                        self._write_page(running=False)
            finally:
                self._log.removeHandler(self._handler)
