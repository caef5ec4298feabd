"""Measure one server at a time: check its predictions, apply the loads, read its memory."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.studies.peers.competitor import HOST, Competitor, LaunchContext, PeerTarget
from pipework.benchmarks.studies.peers.peer_server import PeerServer
from pipework.benchmarks.studies.peers.reference import Reference
from pipework.benchmarks.studies.records.peer_serving_results import (
    AnswerCheck,
    Candidate,
    ClientLoad,
    PeerMeasurement,
)
from pipework.benchmarks.targets.address import TargetAddress
from pipework.errors import PipeError
from pipework.progress import Progress

SHOWN = ("PEER_", "OMP_")  # prefixes of the variables that results record


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The inputs that are the same for all servers.

    Attributes:
        run: the run folder.
        model: the same model in the layout of transformers.
        venvs: folder of the peers' environments.
        cores: number of cores of this machine.
        reference: expected predictions.
        workloads: workload by load.
        progress: reports each level.
    """

    run: Path
    model: Path
    venvs: Path
    cores: int
    reference: Reference
    workloads: Mapping[ClientLoad, Workload]
    progress: Progress

    def search(
        self, competitor: Competitor, seconds: float
    ) -> tuple[Candidate, list[PeerMeasurement]]:
        """Check a competitor and measure it under each load; record the reason of a failure."""
        answers: AnswerCheck | None = None
        trials: list[PeerMeasurement] = []
        failed: str | None = None
        with TemporaryDirectory() as scratch:
            context = self._place(Path(scratch))
            launch = competitor.launch(context)
            try:
                with PeerServer(competitor, context, launch) as server:
                    answers = self.reference.check(server)
                    trials.extend(
                        self._trial(competitor, server, load, 0, seconds) for load in self.workloads
                    )
            except PipeError as error:
                failed = _reason(error, context)
        candidate = Candidate(
            peer=competitor.peer,
            settings=competitor.settings,
            environment=competitor.environment,
            command=tuple(map(context.hide, launch.words)),
            variables={
                name: context.hide(value)
                for name, value in launch.variables.items()
                if name.startswith(SHOWN)
            },
            answers=answers,
            failed=failed,
        )
        return candidate, trials

    def measure(
        self, competitor: Competitor, loads: Sequence[ClientLoad], number: int, seconds: float
    ) -> tuple[list[PeerMeasurement], str | None]:
        """Start a competitor again and measure these loads; return the reason of a failure."""
        trials: list[PeerMeasurement] = []
        with TemporaryDirectory() as scratch:
            context = self._place(Path(scratch))
            try:
                with PeerServer(competitor, context, competitor.launch(context)) as server:
                    trials.extend(
                        self._trial(competitor, server, load, number, seconds) for load in loads
                    )
            except PipeError as error:
                return trials, _reason(error, context)
        return trials, None

    def _trial(
        self,
        competitor: Competitor,
        server: PeerServer,
        load: ClientLoad,
        number: int,
        seconds: float,
    ) -> PeerMeasurement:
        target = PeerTarget(address=TargetAddress.of(server.url), competitor=competitor)
        spec = LoadSpec(
            workload=self.workloads[load],
            load=OfferedLoad(concurrency=load.clients),
            duration=LevelDuration(
                warmup_s=min(1.5, seconds / 2), duration_s=seconds, limit_s=seconds
            ),
        )
        level = closed_loop(target, spec, self.progress).level
        times = level.latency_ms
        return PeerMeasurement(
            peer=competitor.peer,
            settings=competitor.settings,
            load=load,
            round=number,
            texts_per_s=level.texts_per_s,
            p50_ms=None if times is None else times.p50,
            p99_ms=None if times is None else times.p99,
            errors=level.errors,
            memory_mib=round(server.memory_mib(), 1),
            start_s=round(server.start_s, 2),
        )

    def _place(self, scratch: Path) -> LaunchContext:
        return LaunchContext(
            run=self.run,
            model=self.model,
            venvs=self.venvs,
            scratch=scratch,
            port=_free_port(),
            cores=self.cores,
        )


def installed(
    competitors: Sequence[Competitor], venvs: Path
) -> tuple[list[Competitor], dict[str, str], dict[str, dict[str, str]]]:
    """Return the installed competitors, reasons for the absent ones, and package versions."""
    absent: dict[str, str] = {}
    versions: dict[str, dict[str, str]] = {}
    for environment in dict.fromkeys(competitor.environment for competitor in competitors):
        try:
            versions[environment] = environment.versions(venvs)
        except PipeError as error:
            absent[environment] = f"{error}; {error.hint}".replace(str(venvs), "VENVS")
    present = [competitor for competitor in competitors if competitor.environment not in absent]
    return present, absent, versions


def _reason(error: PipeError, context: LaunchContext) -> str:
    """Return the reason of a failure on one line, without paths of this machine."""
    return context.hide(f"{error}; {_last_error(error.details)}")


def _last_error(log: str) -> str:
    """Return the last log line that names an error, otherwise the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " ".join((errors or lines or ["its log is empty"])[-1].split())[:300]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
