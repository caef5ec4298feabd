"""Read the git commit of the code, which is stored with results."""

import subprocess
from pathlib import Path

# The checkout, or the folder that the package is installed in.
CHECKOUT = Path(__file__).parents[1]


def git_commit(root: Path) -> str | None:
    """Return the commit of a checkout, ending in -dirty if files differ; None without one."""
    # An installed package may be inside another repository: only `root` itself counts.
    if not (root / ".git").exists():
        return None
    command = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(  # noqa: S603  (fixed arguments)
            command, cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:  # git is not installed
        return None
    return done.stdout.strip() or None
