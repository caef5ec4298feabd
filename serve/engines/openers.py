"""Opens the first engine of a version and further instances of it."""

from dataclasses import dataclass
from pathlib import Path

from pipework.machine import cpu_limit
from pipework.run_folder.change_limits import DEFAULT_LIMITS, ChangeLimits
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.serve.engines import computes_on_gpu, open_first, open_proven


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOpener:
    """Opens engines in this process.

    With `prove` the parity of the first is always checked here, on the stored reference rows.
    `limits` apply to the first if it has no name.
    """

    prove: bool = False
    limits: ChangeLimits = DEFAULT_LIMITS

    def instances(self, manifest: Manifest, name: str | None) -> int:
        """Return two for an engine on a CPU with two cores or more, else one."""
        return 1 if computes_on_gpu(manifest, name, self.limits) else min(2, cpu_limit())

    def first(
        self, run: Path, manifest: Manifest, name: str | None, threads: int | None
    ) -> tuple[EngineRecord, Engine]:
        """Open the named engine, or the first that works on this machine.

        `threads` is the number of threads of the runtime; None for all CPUs.

        Raises:
            PipeError: no engine can be opened.
        """
        return open_first(
            run, manifest, name, prove=self.prove, threads=threads, limits=self.limits
        )

    def again(self, run: Path, manifest: Manifest, name: str, threads: int | None) -> Engine:
        """Open another instance of an engine.

        Raises:
            PipeError: it cannot be opened.
        """
        return open_proven(run, manifest, name, threads=threads)
