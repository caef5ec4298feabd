"""Where a tritonserver is found, and what it needs to run."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipework.errors import MissingDependencyError
from pipework.git import CHECKOUT

HOME = CHECKOUT / ".triton"  # of `make triton`


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """A tritonserver and where it finds what it needs.

    Attributes:
        binary: the program.
        backends: the folder of its backends, or None for its own default.
        venv: what its python models run in, or None for what the program finds by itself.
    """

    binary: Path
    backends: Path | None = None
    venv: Path | None = None

    @classmethod
    def find(cls, home: Path = HOME) -> "Installation":
        """Return the tritonserver on PATH, or the one that `make triton` installed.

        Raises:
            MissingDependencyError: there is neither.
        """
        on_path = shutil.which("tritonserver")
        if on_path is not None:
            return cls(binary=Path(on_path))
        root = home / "server" / "pytriton" / "tritonserver"
        binary = root / "bin" / "tritonserver"
        if not os.access(binary, os.X_OK):
            message = f"tritonserver is neither on PATH nor in {home}"
            raise MissingDependencyError(message, "make triton")
        return cls(binary=binary, backends=root / "backends", venv=home / "venv")

    def environment(self) -> dict[str, str]:
        """Return the variables to start it with.

        The process that runs a python model takes the environment whose bin comes first on PATH,
        and loads the library of that Python.

        Raises:
            MissingDependencyError: that Python does not run.
        """
        inherited = dict(os.environ)
        if self.venv is None:
            return inherited
        program = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
        command = [str(self.venv / "bin" / "python"), "-c", program]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (our own program)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the Python of Triton's models does not run: {error}"
            raise MissingDependencyError(message, "make triton") from error
        return inherited | {
            "VIRTUAL_ENV": str(self.venv),
            "PATH": os.pathsep.join((str(self.venv / "bin"), os.environ.get("PATH", ""))),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (done.stdout.strip(), os.environ.get("LD_LIBRARY_PATH")))
            ),
        }
