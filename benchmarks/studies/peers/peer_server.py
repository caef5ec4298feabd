"""A server of a comparison while it runs: started, asked, weighed and stopped."""

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
    Contender,
    Launch,
    Place,
    Probabilities,
)
from pipework.closeable import Closing
from pipework.errors import NotReadyError

START_S, STOP_S, ASK_S, POLL_S = 180.0, 20.0, 60.0, 0.05
TAIL = 15  # lines of its log that are shown
FIRST = ("a film that is worth the time",)
STATE, SESSION = 0, 3  # fields of /proc/PID/stat after the name of a process
ZOMBIE = "Z"  # ended, and its parent has not looked


class PeerServer(Closing):
    """A contender that has given its first answer.

    Attributes:
        url: of the server.
        start_s: seconds from its start to its first answer.
        session: of the system, which all its processes belong to.
    """

    def __init__(self, contender: Contender, place: Place, launch: Launch) -> None:
        """Start it and wait for its first answer.

        Raises:
            NotReadyError: it ended or did not answer; the details are the end of its log.
        """
        self.url, self._contender = f"http://{HOST}:{place.port}", contender
        self._log = place.scratch / "server.log"
        begun = time.perf_counter()
        self._process = _start(launch, place.scratch, self._log)
        self.session = self._process.pid
        self._door = httpx.Client(base_url=self.url, timeout=ASK_S, trust_env=False)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - begun

    def ask(self, texts: Sequence[str]) -> list[Probabilities]:
        """Return what it says of each text.

        Raises:
            NotReadyError: it refuses, does not answer, or answers something else.
        """
        content = self._contender.request(texts)
        headers = {"Content-Type": "application/json"}
        try:
            answer = self._door.post(self._contender.path, content=content, headers=headers)
        except httpx.HTTPError as error:
            message = f"{self._contender.peer} does not answer: {type(error).__name__}: {error}"
            raise NotReadyError(message) from error
        if answer.status_code != HTTPStatus.OK:
            said = " ".join(answer.text.split())[:300]
            message = f"{self._contender.peer} answers HTTP {answer.status_code}: {said}"
            raise NotReadyError(message)
        try:
            rows = self._contender.parse(json.loads(answer.content))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            message = f"{self._contender.peer} answers {answer.text[:300]}: {error!r}"
            raise NotReadyError(message) from error
        if len(rows) != len(texts):
            message = f"{self._contender.peer} answers {len(rows)} of {len(texts)} texts"
            raise NotReadyError(message)
        return rows

    def memory_mib(self) -> float:
        """Return the memory of all its processes, where what they share counts once (PSS)."""
        kib = sum(_pss_kib(pid) for pid in processes(self.session))
        return kib / 1024

    def close(self) -> None:
        """Stop it and all its processes. Closing twice is allowed."""
        self._door.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        while left := processes(self.session):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(POLL_S)
        self._process.wait()

    def _wait(self) -> None:
        why, end = "it said nothing", time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                why = f"it ended with {self._process.returncode}"
                break
            try:
                self.ask(FIRST)
            except NotReadyError as error:
                why = str(error)
                time.sleep(POLL_S)
            else:
                return
        message = f"{self._contender.peer} did not start: {why}"
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL:])
        raise NotReadyError(message, "the end of its log stands above this line", tail)


def _start(launch: Launch, folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    try:
        with log.open("wb") as stream:
            return subprocess.Popen(  # noqa: S603  (words of our own)
                launch.words,
                env=_surroundings(launch),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        message = f"{launch.words[0]} cannot be started: {error.strerror}"
        raise NotReadyError(message) from error


def _surroundings(launch: Launch) -> dict[str, str]:
    """Return the variables of this process without those that change what a peer imports."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"HF_HUB_OFFLINE": "1"} | dict(launch.variables)


def processes(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name of a process, in brackets, may hold spaces and brackets.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[SESSION]) == session and fields[STATE] != ZOMBIE:
                found.append(int(folder.name))
    return found


def _pss_kib(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
