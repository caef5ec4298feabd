"""One server at a time: checked, put under load, weighed."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.studies.peer_serving_results import Answers, Candidate, Load, Trial
from pipework.benchmarks.studies.peers.competitor import HOST, Contender, PeerTarget, Place
from pipework.benchmarks.studies.peers.peer_server import PeerServer
from pipework.benchmarks.studies.peers.reference import Reference
from pipework.benchmarks.targets.address import Address
from pipework.errors import PipeError
from pipework.progress import Progress

SHOWN = ("PEER_", "OMP_")  # variables that say how a server works


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What all servers share.

    Attributes:
        run: the run folder.
        model: the same as others open it.
        venvs: environments of peers.
        cores: of this machine.
        reference: what they should answer.
        workloads: what is sent, by load.
        progress: is told each level.
    """

    run: Path
    model: Path
    venvs: Path
    cores: int
    reference: Reference
    workloads: Mapping[Load, Workload]
    progress: Progress

    def search(self, contender: Contender, seconds: float) -> tuple[Candidate, list[Trial]]:
        """Check a contender and put it under each load; say why where it fails."""
        answers: Answers | None = None
        trials: list[Trial] = []
        failed: str | None = None
        with TemporaryDirectory() as scratch:
            place = self._place(Path(scratch))
            launch = contender.launch(place)
            try:
                with PeerServer(contender, place, launch) as server:
                    answers = self.reference.check(server)
                    trials.extend(
                        self._trial(contender, server, load, 0, seconds) for load in self.workloads
                    )
            except PipeError as error:
                failed = _why(error, place)
        candidate = Candidate(
            peer=contender.peer,
            settings=contender.settings,
            environment=contender.environment,
            command=tuple(map(place.hide, launch.words)),
            variables={
                name: place.hide(value)
                for name, value in launch.variables.items()
                if name.startswith(SHOWN)
            },
            answers=answers,
            failed=failed,
        )
        return candidate, trials

    def measure(
        self, contender: Contender, loads: Sequence[Load], number: int, seconds: float
    ) -> tuple[list[Trial], str | None]:
        """Start a contender anew and put it under these loads; say why where it fails."""
        trials: list[Trial] = []
        with TemporaryDirectory() as scratch:
            place = self._place(Path(scratch))
            try:
                with PeerServer(contender, place, contender.launch(place)) as server:
                    trials.extend(
                        self._trial(contender, server, load, number, seconds) for load in loads
                    )
            except PipeError as error:
                return trials, _why(error, place)
        return trials, None

    def _trial(
        self, contender: Contender, server: PeerServer, load: Load, number: int, seconds: float
    ) -> Trial:
        level = closed_loop(
            PeerTarget(address=Address.of(server.url), contender=contender),
            self.workloads[load],
            concurrency=load.clients,
            duration_s=seconds,
            warmup_s=min(1.5, seconds / 2),
            limit_s=seconds,
            progress=self.progress,
        )
        times = level.latency_ms
        return Trial(
            peer=contender.peer,
            settings=contender.settings,
            load=load,
            round=number,
            texts_per_s=level.texts_per_s,
            p50_ms=None if times is None else times.p50,
            p99_ms=None if times is None else times.p99,
            errors=level.errors,
            memory_mib=round(server.memory_mib(), 1),
            start_s=round(server.start_s, 2),
        )

    def _place(self, scratch: Path) -> Place:
        return Place(
            run=self.run,
            model=self.model,
            venvs=self.venvs,
            scratch=scratch,
            port=_free_port(),
            cores=self.cores,
        )


def present(
    contenders: Sequence[Contender], venvs: Path
) -> tuple[list[Contender], dict[str, str], dict[str, dict[str, str]]]:
    """Return those whose environment is there, why others are absent, and the versions in each."""
    absent: dict[str, str] = {}
    versions: dict[str, dict[str, str]] = {}
    for environment in dict.fromkeys(one.environment for one in contenders):
        try:
            versions[environment] = environment.versions(venvs)
        except PipeError as error:
            absent[environment] = f"{error}; {error.hint}".replace(str(venvs), "VENVS")
    there = [one for one in contenders if one.environment not in absent]
    return there, absent, versions


def _why(error: PipeError, place: Place) -> str:
    """Return in a line, without paths of this machine, why a server was not measured."""
    return place.hide(f"{error}; {_last_error(error.details)}")


def _last_error(log: str) -> str:
    """Return the last line that names an error, else the last one, without its line breaks."""
    said = [line for line in log.splitlines() if line.strip()]
    named = [line for line in said if "Error" in line]
    return " ".join((named or said or ["it said nothing"])[-1].split())[:300]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
