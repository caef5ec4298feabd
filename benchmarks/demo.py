"""`make demo`: the whole line by its public commands, on the sample, with a summary at the end."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from queue import Empty, Queue
from time import monotonic, sleep
from types import FrameType

from pipework.errors import NotReadyError, PipeError
from pipework.serve.client import Client

PIPE = Path(sys.executable).with_name("pipe")
START_S, STOP_S = 60.0, 30.0
URL = re.compile(r"http://[\w.:\[\]-]+:\d+")
FLOOR = "naive Bayes, accuracy 0.652 (train/sample/DATA_CARD.md)"
TEXTS = (
    "The home team scored twice in the last minute and won the cup final",
    "央行宣布下调贷款利率 股市应声上涨",
)


class StageError(Exception):
    """A command ended with something other than 0."""

    def __init__(self, command: Sequence[str], code: int) -> None:
        """Keep the exit code, which becomes the demo's."""
        super().__init__(f"`{shlex.join(command)}` ended with {code}")
        self.code = code


class Demo:
    """The stages in their order, each timed."""

    def __init__(self, pipe: Path, run: Path) -> None:
        """Use the executable `pipe` and make the run folder `run`, which must not exist."""
        self._pipe = pipe
        self._run = run
        self._took_s: dict[str, float] = {}

    def play(self) -> None:
        """Run every stage, then say how long each took and where the report lies.

        Raises:
            StageError: a command failed; nothing is left running.
            PipeError: the server did not answer as it should.
        """
        run = str(self._run)
        with self._stage("train"):
            self._call("train", "sample", "--out", run)
        with self._stage("evaluate"):
            self._call("eval", run, "--split", "test")
            _say(f"\nFor comparison, on the same test rows: {FLOOR}")
        with self._stage("export and prove"):
            self._call("export", run, "--to", "onnx")
        with self._server() as url:
            with self._stage("ask"):
                _ask(url)
            with self._stage("measure"):
                report, result = str(self._run / "bench.html"), str(self._run / "bench.json")
                self._call("bench", url, "--seconds", "2", "--html", report, "--json", result)
        self._summary()

    def _call(self, *words: str) -> None:
        command = self._show(*words)
        code = subprocess.run(command, check=False).returncode  # noqa: S603  (our own words)
        if code:
            raise StageError(command, code)

    @contextmanager
    def _server(self) -> Iterator[str]:
        command = self._show("serve", str(self._run), "--port", "0", "--grpc-port", "0")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
            try:
                with self._stage("start the server"):
                    url = _url(server, command)
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

    def _show(self, *words: str) -> list[str]:
        _say(f"\n$ {shlex.join(('pipe', *words))}")
        return [str(self._pipe), *words]

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start_s = monotonic()
        yield
        self._took_s[name] = monotonic() - start_s

    def _summary(self) -> None:
        _say("\nDone:")
        for name, took_s in self._took_s.items():
            _say(f"  {name:18}{took_s:7.1f} s")
        _say(f"  {'together':18}{sum(self._took_s.values()):7.1f} s")
        _say(f"\nThe run folder is {self._run}, the report {self._run / 'bench.html'}")
        _say(f"Serve it again: {os.path.relpath(self._pipe)} serve {self._run}")


def main() -> int:
    """Play the demo in `runs/demo`, or the first free folder after it; return the exit code."""
    # So that an end from outside, too, passes the `finally` that stops the server.
    signal.signal(signal.SIGTERM, _end)
    try:
        Demo(PIPE, _free(Path("runs"))).play()
    except StageError as error:
        sys.stderr.write(f"\nThe demo stopped: {error}\n")
        return error.code if error.code > 0 else 1
    except PipeError as error:
        sys.stderr.write(f"\nThe demo stopped: {error}\n{error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _free(folder: Path) -> Path:
    names = chain(["demo"], (f"demo-{number}" for number in count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def _url(server: subprocess.Popen[str], command: Sequence[str]) -> str:
    """Read the server's lines until one holds its URL, and wait until it is ready."""
    lines: Queue[str] = Queue()
    threading.Thread(target=_pass_on, args=(server, lines), daemon=True).start()
    deadline_s = monotonic() + START_S
    while monotonic() < deadline_s and server.poll() is None:
        with suppress(Empty):
            found = URL.search(lines.get(timeout=0.1))
            if found is not None and _ready(server, found[0], deadline_s):
                return found[0]
    if server.poll() is not None:
        raise StageError(command, server.returncode or 1)
    message = f"the server was not ready after {START_S:.0f} s"
    raise NotReadyError(message, "run `pipe serve` by hand to see why")


def _ready(server: subprocess.Popen[str], url: str, deadline_s: float) -> bool:
    with Client(url) as client:
        while monotonic() < deadline_s and server.poll() is None:
            if client.ready():
                return True
            sleep(0.1)
    return False


def _pass_on(server: subprocess.Popen[str], lines: "Queue[str]") -> None:
    """Show the server's output; reading it to its end keeps the server from blocking on it."""
    for line in server.stdout or ():
        _say(line.rstrip("\n"))
        lines.put(line)


def _ask(url: str) -> None:
    _say(f"\nAsking {url} through pipework.serve.client.Client:")
    with Client(url) as client:
        predictions = client.predict(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        label, score = prediction.words()
        _say(f"  {label} ({float(score):.2f})  {text}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
