"""Create the environments of peers: `python -m pipework.benchmarks.studies.peers.environments DIR`.

Peers that need other package versions than pipework have a virtual environment of their own, with
exactly the packages that `environments/NAME.txt` pins. The environment of Triton is created by
`make triton`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from pipework import console
from pipework.errors import MissingDependencyError, PipeError
from pipework.serve.triton.installation import Installation

PINS = Path(__file__).parent / "environments"
READY = "ready"  # marker file: a copy of the pins, written last
VERSIONS = """
import importlib.metadata, json, sys
known = {}
for name in sys.argv[1:]:
    try: known[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: pass
print(json.dumps(known))
"""
PACKAGES = (
    *("fastapi", "infinity-emb", "litserve", "mlserver", "mlserver-huggingface", "numpy"),
    *("onnxruntime", "openvino", "optimum", "tokenizers", "torch", "transformers", "uvicorn"),
)


class Environment(StrEnum):
    """The environment that a server runs in; OWN is that of this process."""

    OWN = "own"
    TRITON = "triton"
    INFINITY = "infinity"
    LITSERVE = "litserve"
    MLSERVER = "mlserver"

    def python(self, venvs: Path) -> Path:
        """Return the path of its Python.

        Raises:
            MissingDependencyError: it is missing or has other pins; the hint is how to create it.
        """
        match self:
            case Environment.OWN:
                return Path(sys.executable)
            case Environment.TRITON:
                return (Installation.find().venv or Path(sys.prefix)) / "bin" / "python"
            case Environment.INFINITY | Environment.LITSERVE | Environment.MLSERVER:
                folder = venvs / self
                if not _is_ready(folder, PINS / f"{self}.txt"):
                    message = f"expected an environment {self} with the pinned versions in {venvs}"
                    hint = f"python -m pipework.benchmarks.studies.peers.environments {venvs}"
                    raise MissingDependencyError(message, hint)
                return folder / "bin" / "python"

    def versions(self, venvs: Path) -> dict[str, str]:
        """Return the versions of its packages that affect speed.

        Raises:
            MissingDependencyError: it is missing, or its Python does not run.
        """
        words = [str(self.python(venvs)), "-c", VERSIONS, *PACKAGES]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603  (our own program)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the Python of {self} does not run: {error}"
            raise MissingDependencyError(
                message, f"remove {venvs / self}, make_environment it again"
            ) from error
        return {str(name): str(version) for name, version in json.loads(done.stdout).items()}


VIRTUAL_ENVIRONMENTS = (Environment.INFINITY, Environment.LITSERVE, Environment.MLSERVER)


def make_environment(environment: Environment, venvs: Path) -> None:
    """Create an environment, unless it exists with these pins.

    Raises:
        MissingDependencyError: its packages cannot be installed.
    """
    folder, pins = venvs / environment, PINS / f"{environment}.txt"
    if _is_ready(folder, pins):
        return
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)  # noqa: S603  (fixed words)
        subprocess.run([*install, "--no-deps", "-r", str(pins)], check=True)  # noqa: S603  (fixed words)
    except (OSError, subprocess.SubprocessError) as error:
        message = f"environment {environment} cannot be created: {error}"
        raise MissingDependencyError(message, "see the output of pip above this line") from error
    (folder / READY).write_bytes(pins.read_bytes())


def _is_ready(folder: Path, pins: Path) -> bool:
    ready = folder / READY
    return ready.is_file() and ready.read_bytes() == pins.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Create all environments; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.environments", description=__doc__
    )
    parser.add_argument("venvs", type=Path, help="folder of the environments")
    venvs = parser.parse_args(arguments).venvs
    venvs.mkdir(parents=True, exist_ok=True)
    exit_code = 0
    for environment in VIRTUAL_ENVIRONMENTS:
        try:
            make_environment(environment, venvs)
        except PipeError as error:  # the other environments are created all the same
            console.print_error(error)
            exit_code = error.exit_code
        else:
            sys.stdout.write(f"{environment}: ready\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
