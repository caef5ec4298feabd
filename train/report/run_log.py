"""What a run writes while it trains: log.jsonl, TensorBoard events and train.log."""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.utils.tensorboard import SummaryWriter

from pipework.run_folder.files import write_atomically
from pipework.scoring.evaluation import Evaluation
from pipework.train.report.confusion_matrix import confusion_image

LOG = "log.jsonl"
MARK = "train.log"  # the first file of a run: a folder without it is not ours to clear


class Unheard:
    """What processes other than the first write: nothing. A context manager, as `Journal` is."""

    def scalars(self, step: int, group: str, values: Mapping[Any, float]) -> None:
        """Keep figures of a step."""

    def confusion(self, step: int, evaluation: Evaluation) -> None:
        """Keep a picture of which classes are taken for which."""

    def histograms(self, step: int, model: nn.Module) -> None:
        """Keep how the weights are distributed."""

    def say(self, line: str) -> None:
        """Keep a line."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing."""


class Journal(Unheard):
    """The files of one run; a context manager that also keeps the traceback of what ended it."""

    def __init__(self, run: Path, *, step: int = 0, elapsed_s: float = 0.0) -> None:
        """Open the files of a run folder, as they were when the run stood at a step.

        What was written after it is dropped: it will be written again.
        """
        self._start = time.monotonic() - elapsed_s
        self._handler = logging.FileHandler(run / MARK, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._log = logging.getLogger("train")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.addHandler(self._handler)
        known = [line for line in lines(run) if line["step"] <= step]
        write_atomically(run / LOG, "".join(json.dumps(line) + "\n" for line in known).encode())
        self._lines = (run / LOG).open("a", encoding="utf-8")
        self._board = SummaryWriter(str(run), purge_step=step + 1)

    def scalars(self, step: int, group: str, values: Mapping[Any, float]) -> None:
        """Keep figures of a step, in every place."""
        seconds = round(time.monotonic() - self._start, 3)
        line = {"step": step, "group": group, "elapsed_s": seconds, **values}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def confusion(self, step: int, evaluation: Evaluation) -> None:
        """Keep a picture of which classes are taken for which, for TensorBoard."""
        if evaluation.confusion:
            picture_HW3 = confusion_image(evaluation)
            self._board.add_image("dev/confusion", picture_HW3, step, dataformats="HWC")

    def histograms(self, step: int, model: nn.Module) -> None:
        """Keep how the weights are distributed, for TensorBoard."""
        for name, parameter in model.named_parameters():
            self._board.add_histogram(name, parameter.detach().float().cpu(), step)

    def say(self, line: str) -> None:
        """Keep a line in train.log."""
        self._log.info(line)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep the traceback, if there is one, and close the files."""
        if value is not None:
            self._log.error("ended early", exc_info=value)
        self._log.removeHandler(self._handler)
        self._handler.close()
        self._board.close()
        self._lines.close()


def lines(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a run's log; none if there is no log.

    Each has the `step`, the `group` ("train" or "dev"), and `elapsed_s` since the run began.
    """
    with suppress(OSError), (run / LOG).open(encoding="utf-8") as stream:
        for line in stream:
            with suppress(ValueError):  # a killed run may have left the last line cut short
                yield json.loads(line)


def last_line(run: Path) -> dict[str, Any]:
    """Return the last whole line of a run's log; empty if there is none."""
    last: dict[str, Any] = {}
    for line in lines(run):
        last = line
    return last
