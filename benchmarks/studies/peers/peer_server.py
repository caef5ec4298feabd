"""Run a compared server: start it, send requests, read its memory, stop it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import httpx

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
)
from pipework.closeable import Closeable
from pipework.errors import NotReadyError

START_S, STOP_S, ASK_S, POLL_S = 180.0, 20.0, 60.0, 0.05
TAIL = 15  # lines of the log that are shown
FIRST = ("a film that is worth the time",)
STATE, SESSION = 0, 3  # fields of /proc/PID/stat after the process name
ZOMBIE = "Z"  # ended, not yet waited for


class PeerServer(Closeable):
    """A compared server that has completed its first request.

    Attributes:
        start_s: seconds from its start to its first response.
        session: id of the system session of all its processes.
    """

    def __init__(self, competitor: Competitor, context: LaunchContext) -> None:
        """Start the server and wait for its first response.

        Raises:
            NotReadyError: it ended or did not respond; the details are the end of its log.
        """
        self.url, self._competitor = f"http://{HOST}:{context.port}", competitor
        self._log = context.scratch / "server.log"
        start_s = time.perf_counter()
        self._process = _start(competitor.launch(context), context.scratch, self._log)
        self.session = self._process.pid
        self._client = httpx.Client(base_url=self.url, timeout=ASK_S, trust_env=False)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - start_s

    def ask(self, texts: Sequence[str]) -> list[Probabilities]:
        """Return its prediction for each text.

        Raises:
            NotReadyError: the request fails, or the response has another format.
        """
        peer = self._competitor.peer
        content = self._competitor.request(texts)
        headers = {"Content-Type": "application/json"}
        try:
            response = self._client.post(self._competitor.path, content=content, headers=headers)
        except httpx.HTTPError as error:
            message = f"{peer} does not respond: {type(error).__name__}: {error}"
            raise NotReadyError(message) from error
        body = " ".join(response.text.split())[:300]
        if response.status_code != HTTPStatus.OK:
            message = f"{peer} responds with HTTP {response.status_code}: {body}"
            raise NotReadyError(message)
        try:
            rows = self._competitor.parse(json.loads(response.content))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            message = f"unexpected response of {peer}: {error!r}: {body}"
            raise NotReadyError(message) from error
        if len(rows) != len(texts):
            message = f"{peer} returned {len(rows)} predictions for {len(texts)} texts"
            raise NotReadyError(message)
        return rows

    def memory_mib(self) -> float:
        """Return the memory of all its processes, with shared pages counted once (PSS)."""
        kib = sum(_pss_kib(pid) for pid in processes(self.session))
        return kib / 1024

    def close(self) -> None:
        """Stop the server and all its processes; may be called repeatedly."""
        self._client.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        while remaining := processes(self.session):
            for pid in remaining:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(POLL_S)
        self._process.wait()

    def _wait(self) -> None:
        reason, deadline_s = "it did not respond", time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                reason = f"it exited with code {self._process.returncode}"
                break
            try:
                self.ask(FIRST)
            except NotReadyError as error:
                reason = str(error)
                time.sleep(POLL_S)
            else:
                return
        message = f"{self._competitor.peer} did not start: {reason}"
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL:])
        raise NotReadyError(message, "the end of its log is above this line", tail)


def _start(launch: Launch, folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    try:
        with log.open("wb") as stream:
            return subprocess.Popen(  # noqa: S603  (our own command)
                launch.words,
                env=_environment(launch),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        message = f"{launch.words[0]} cannot be started: {error.strerror}"
        raise NotReadyError(message) from error


def _environment(launch: Launch) -> dict[str, str]:
    """Return the environment variables of this process without those that change Python imports."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return own | {"HF_HUB_OFFLINE": "1"} | dict(launch.variables)


def processes(session: int) -> list[int]:
    """Return the ids of a session's processes that have not ended."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The process name, in brackets, may contain spaces and brackets.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[SESSION]) == session and fields[STATE] != ZOMBIE:
                pids.append(int(folder.name))
    return pids


def _pss_kib(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
