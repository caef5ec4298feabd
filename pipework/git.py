"""Which commit made a result."""

import subprocess
from pathlib import Path

# The checkout; where the package is installed, the folder that it is installed in.
CHECKOUT = Path(__file__).parents[1]


def git_commit(root: Path) -> str | None:
    """Return the commit of a checkout, ending in -dirty when files differ; None elsewhere."""
    # An installed package may lie inside somebody else's repository: only our own root counts.
    if not (root / ".git").exists():
        return None
    command = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(  # noqa: S603  (fixed words)
            command, cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:  # no git on this machine
        return None
    return done.stdout.strip() or None
