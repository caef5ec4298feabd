"""What a run writes while it trains: log.jsonl, TensorBoard events and train.log."""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

LOG = "log.jsonl"
MARK = "train.log"  # the first file of a run: a folder without it is not ours to clear


class Journal:
    """The files of one run; a context manager that also keeps the traceback of what ended it."""

    def __init__(self, run: Path) -> None:
        """Open the files of a run folder for appending."""
        self._start = time.monotonic()
        self._handler = logging.FileHandler(run / MARK, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._log = logging.getLogger("train")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.addHandler(self._handler)
        self._lines = (run / LOG).open("a", encoding="utf-8")
        self._board = SummaryWriter(str(run))

    def scalars(self, step: int, group: str, values: Mapping[str, float]) -> None:
        """Keep figures of a step, in every place."""
        seconds = round(time.monotonic() - self._start, 3)
        line = {"step": step, "group": group, "elapsed_s": seconds, **values}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def say(self, line: str) -> None:
        """Keep a line in train.log."""
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
        """Keep the traceback, if there is one, and close the files."""
        if value is not None:
            self._log.error("ended early", exc_info=value)
        self._log.removeHandler(self._handler)
        self._handler.close()
        self._board.close()
        self._lines.close()


def last_line(run: Path) -> dict[str, Any]:
    """Return the last whole line that a run wrote to its log; empty if there is none.

    It has the `step`, and `elapsed_s` since the run began.
    """
    last: dict[str, Any] = {}
    with suppress(OSError), (run / LOG).open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError):  # a killed run may have left the last line cut short
                last = json.loads(line)
    return last
