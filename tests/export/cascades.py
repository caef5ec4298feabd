"""Cascades of the tests."""

from pipework.export.cascade import export_cascade
from pipework.export.config import CascadeSettings
from pipework.progress import NullProgress
from pipework.run_folder.manifest import LockedRun


def cascaded(run, first=None, **settings):
    """Put a first stage before the engine of a run."""
    with LockedRun.open(run) as locked:
        return export_cascade(locked, first, CascadeSettings(**settings), NullProgress())
