"""`make demo`: runs all steps with the public commands on the sample data and prints a summary."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

from pipework.client import Client
from pipework.errors import NotReadyError, PipeError
from pipework.run_folder.manifest import read_manifest
from pipework.train.report.baseline import better_run

PIPE = Path(sys.executable).with_name("pipe")
START_S, STOP_S = 60.0, 30.0
URL = re.compile(r"http://[\w.:\[\]-]+:\d+")
FLOOR = "naive Bayes, accuracy 0.652 (train/sample/DATA_CARD.md)"
TEXTS = (
    "The home team scored twice in the last minute and won the cup final",
    "央行宣布下调贷款利率 股市应声上涨",
)


class StageError(Exception):
    """A command failed (exit code other than 0)."""

    def __init__(self, command: Sequence[str], code: int) -> None:
        """Store the exit code, which becomes the exit code of the demo."""
        super().__init__(f"`{shlex.join(command)}` failed with exit code {code}")
        self.code = code


class Demo:
    """Runs the stages in order and times each of them."""

    def __init__(self, pipe: Path, run: Path) -> None:
        """Use the executable `pipe` and create the run folder `run`, which must not exist."""
        self._pipe = pipe
        self._run = run
        self._durations_s: dict[str, float] = {}

    def run_stages(self) -> None:
        """Run every stage, then print their durations and the path of the report.

        Raises:
            StageError: a command failed; no process is left running.
            PipeError: the server did not respond as expected.
        """
        run = str(self._run)
        with self._stage("train"):
            self._call("train", "sample", "--out", run)
        with self._stage("evaluate"):
            self._call("eval", run, "--split", "test")
            _print(f"\nFor comparison, on the same test rows: {FLOOR}")
        served = str(better_run(self._run, read_manifest(self._run)))
        if served != run:
            _print(f"\nThe linear model is as good or better, so it is served: {served}")
        with self._stage("export and prove"):
            self._call("export", served, "--to", "onnx")
        with self._server(served) as url:
            with self._stage("ask"):
                _request_predictions(url)
            with self._stage("measure"):
                report, result = str(self._run / "bench.html"), str(self._run / "bench.json")
                self._call("bench", url, "--seconds", "2", "--html", report, "--json", result)
        self._summary(served)

    def _call(self, *words: str) -> None:
        command = self._print_command(*words)
        exit_code = subprocess.run(command, check=False).returncode  # noqa: S603  (our own command)
        if exit_code:
            raise StageError(command, exit_code)

    @contextmanager
    def _server(self, run: str) -> Iterator[str]:
        command = self._print_command("serve", run, "--port", "0", "--grpc-port", "0")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
            try:
                with self._stage("start the server"):
                    url = server_url(server, command)
                yield url
                with self._stage("stop the server"):
                    server.terminate()
                    code = server.wait(STOP_S)
            except subprocess.TimeoutExpired as error:
                message = f"the server did not stop within {STOP_S:.0f} s of SIGTERM"
                raise NotReadyError(message) from error
            finally:
                server.kill()
        if code:
            raise StageError(command, code)

    def _print_command(self, *words: str) -> list[str]:
        _print(f"\n$ {shlex.join(('pipe', *words))}")
        return [str(self._pipe), *words]

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start_s = monotonic()
        yield
        self._durations_s[name] = monotonic() - start_s

    def _summary(self, served: str) -> None:
        _print("\nDone:")
        for name, duration_s in self._durations_s.items():
            _print(f"  {name:18}{duration_s:7.1f} s")
        _print(f"  {'together':18}{sum(self._durations_s.values()):7.1f} s")
        _print(f"\nThe run folder is {self._run}, the report {self._run / 'bench.html'}")
        _print(f"Serve it again: {os.path.relpath(self._pipe)} serve {served}")


def main() -> int:
    """Run the demo in `runs/demo` or the next unused folder; return the exit code."""
    # SIGTERM must also run the `finally` that stops the server.
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        Demo(PIPE, _unused_folder(Path("runs"))).run_stages()
    except StageError as error:
        sys.stderr.write(f"\nThe demo failed: {error}\n")
        return error.code if error.code > 0 else 1
    except PipeError as error:
        sys.stderr.write(f"\nThe demo failed: {error}\n{error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _unused_folder(folder: Path) -> Path:
    names = chain(["demo"], (f"demo-{number}" for number in count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def server_url(server: subprocess.Popen[str], command: Sequence[str]) -> str:
    """Print the server's output until a line contains its URL, and wait until it is ready.

    Raises:
        StageError: it has ended.
        NotReadyError: it is not ready in time.
    """
    for line in server.stdout or ():
        _print(line.rstrip("\n"))
        if match := URL.search(line):
            _wait_until_ready(server, match[0])
            return match[0]
    raise StageError(command, server.wait(STOP_S) or 1)


def _wait_until_ready(server: subprocess.Popen[str], url: str) -> None:
    deadline_s = monotonic() + START_S
    with Client(url) as client:
        while not client.ready():
            if server.poll() is not None:
                raise StageError(["pipe", "serve"], server.returncode or 1)
            if monotonic() > deadline_s:
                message = f"the server was not ready after {START_S:.0f} s"
                raise NotReadyError(message, "run `pipe serve` manually to see why")
            sleep(0.1)


def _request_predictions(url: str) -> None:
    _print(f"\nPredictions of {url} with pipework.client.Client:")
    with Client(url) as client:
        predictions = client.predict(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        label, score = prediction.text_fields()
        _print(f"  {label} ({float(score):.2f})  {text}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
