"""The Python environments in which compared servers run."""

import sys
from enum import StrEnum
from pathlib import Path

from pipework.errors import MissingDependencyError
from pipework.serve.triton.installation import Installation

PINS = Path(__file__).with_name("infinity.txt")


class Environment(StrEnum):
    """The environment that a server runs in; OWN is the environment of this process."""

    OWN = "own"
    TRITON = "triton"
    INFINITY = "infinity"

    def python(self, infinity: Path) -> Path:
        """Return the path of its Python; `infinity` is the virtual environment of INFINITY.

        Raises:
            MissingDependencyError: it is missing; the hint is how to create it.
        """
        match self:
            case Environment.OWN:
                return Path(sys.executable)
            case Environment.TRITON:
                return (Installation.find().venv or Path(sys.prefix)) / "bin" / "python"
            case Environment.INFINITY:
                if not (infinity / "bin" / "infinity_emb").is_file():
                    message = f"expected a virtual environment with infinity in {infinity}"
                    install = f"{infinity}/bin/pip install --no-deps -r {PINS}"
                    raise MissingDependencyError(message, f"python -m venv {infinity}; {install}")
                return infinity / "bin" / "python"
