"""A wrong input of `pipe`, and the folder that its command runs in."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from tests.commands import FinishedCommand, ForkedPipe, pipe

CONFIG = """
[data]
train = "train.tsv"
dev = "dev.tsv"

[model]
preset = "tiny"
vocab_size = 200
max_length = 16

[train]
epochs = 1
batch_size = 8
report = false
"""
TEXTS = (
    ("rain all week", "weather"),
    ("the match was lost", "sports"),
    ("a warm wind", "weather"),
    ("two goals in an hour", "sports"),
)
ROWS = [f"{text} {n}\t{label}" for n in range(4) for text, label in TEXTS]
TRAIN = "\n".join(["text\tlabel", *ROWS, ""])
DEV = "\n".join(["text\tlabel", *(row.replace(" ", " so ", 1) for row in ROWS[:4]), ""])
PROJECT = {"config.toml": CONFIG, "train.tsv": TRAIN, "dev.tsv": DEV}
TRAIN_COMMAND = "train config.toml --out out"

# Another test may examine the graph of the shared run at the same time.
TEMPORARY = shutil.ignore_patterns("optimised-*")


@dataclass(frozen=True, kw_only=True)
class WrongInput:
    """A command and its expected end.

    Attributes:
        error: the message; the text after the tag `error:`.
        command: the words after `pipe`. RUN is a copy of a finished run, ENGINE of one with a
            proven engine.
        needs: RUN or ENGINE, if the command does not name it.
        code: the exit code.
        files: content by name, in addition to a small project with config.toml; None: deleted.
        change: changes the folder of the command before it runs.
        before: is called first, in a fork that then runs the command.
    """

    error: str
    command: str = TRAIN_COMMAND
    needs: str = ""
    code: int = 2
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    change: Callable[[Path], object] | None = None
    before: Callable[[], object] | None = None

    def words(self) -> list[str]:
        """Return the words of the command."""
        return shlex.split(self.command)

    def runs(self, names: Iterable[str]) -> set[str]:
        """Return the runs that the command needs."""
        return {self.needs, *re.split("[ =/]", self.command)} & set(names)

    def prepare(self, folder: Path, runs: Mapping[str, Path]) -> None:
        """Write the files of the command."""
        for name, content in {**PROJECT, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for name, source in runs.items():
            shutil.copytree(source, folder / name, ignore=TEMPORARY)
        if self.change is not None:
            self.change(folder)

    def run(self, folder: Path) -> FinishedCommand:
        """Run the command, with the cache in its folder."""
        cache = {"PIPEWORK_CACHE": str(folder / "cache")}
        with patch.dict(os.environ, cache):
            changes_process = self.before is not None or self.words()[0] == "serve"
            if not changes_process:
                return pipe(*self.words())
            with ForkedPipe(*self.words(), before=self.before) as process:
                return process.finish()


def settings(overrides: str, error: str, **more: str) -> WrongInput:
    """Return a training with settings that are refused."""
    words = "".join(f" --set {shlex.quote(override)}" for override in overrides.split(" & "))
    return WrongInput(command=TRAIN_COMMAND + words, error=error, files=more)


def outside(override: str, expected: str) -> WrongInput:
    """Return a training with a setting whose value is not one of those expected."""
    key, value = override.split("=")
    found = value if re.fullmatch(r"[-.\d]+|nan", value) else repr(value)
    return settings(override, f"--set {key}: Input should be {expected}, found {found}")


def refused(command: str, error: str) -> WrongInput:
    """Return a command that is refused."""
    return WrongInput(command=command, error=error)
