"""How the engines of a version are opened: here, or on a remote tritonserver."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.serve.engines import open_first, open_proven
from pipework.serve.engines.cpu_threads import cpu_limit
from pipework.serve.engines.remote import Behind, open_remote
from pipework.serve.engines.tensorrt_packages import gpu_or_none


class Opener(Protocol):
    """Opens the first engine of a version, and others like it."""

    @property
    def instances(self) -> int:
        """How many engines a version has where nobody says it."""

    def first(
        self, run: Path, manifest: Manifest, name: str | None, threads: int | None
    ) -> tuple[EngineRecord, Engine]:
        """Open the engine of that name, or the first that can answer.

        `threads` is how many it may use, None for all that there are.

        Raises:
            PipeError: there is none.
        """

    def again(self, run: Path, manifest: Manifest, name: str, threads: int | None) -> Engine:
        """Open the same engine once more.

        Raises:
            PipeError: it cannot be opened.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """Engines of this process.

    With `prove` the first is proven here whatever its record says, by the rows kept with it.
    """

    prove: bool = False

    @property
    def instances(self) -> int:
        """Two where a CPU computes that has as many processors, else one."""
        return min(2, cpu_limit()) if gpu_or_none() is None else 1

    def first(
        self, run: Path, manifest: Manifest, name: str | None, threads: int | None
    ) -> tuple[EngineRecord, Engine]:
        """Open it: `pipework.serve.engines.open_first`."""
        return open_first(run, manifest, name, prove=self.prove, threads=threads)

    def again(self, run: Path, manifest: Manifest, name: str, threads: int | None) -> Engine:
        """Open it: `pipework.serve.engines.open_proven`."""
        return open_proven(run, manifest, name, threads=threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnTriton:
    """The model of a tritonserver that computes behind a text model; it is always proven.

    Attributes:
        behind: that model.
        url: host:port of the server's gRPC door.
    """

    behind: Behind
    url: str

    @property
    def instances(self) -> int:
        """One: the instances of the model are there."""
        return 1

    def first(
        self, run: Path, manifest: Manifest, _: str | None, __: int | None
    ) -> tuple[EngineRecord, Engine]:
        """Open it: `pipework.serve.engines.remote.open_remote`."""
        (record,) = manifest.engines
        return record, open_remote(run, manifest, self.behind, self.url)

    def again(self, run: Path, manifest: Manifest, _: str, __: int | None) -> Engine:
        """Open it: `pipework.serve.engines.remote.open_remote`."""
        return open_remote(run, manifest, self.behind, self.url)
