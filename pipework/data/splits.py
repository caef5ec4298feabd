"""The rows of a split of a run: from its data file, or those that the run has kept."""

from pathlib import Path

from pipework.data.examples import Source
from pipework.data.kept_rows import kept_source
from pipework.errors import ConfigError, DataError
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import Manifest


def split_source(run: Path, manifest: Manifest, split: str) -> Source:
    """Return the rows of a split, after checking that its file has not changed since training.

    Without the file, the dev rows are those that the run has kept.

    Raises:
        ConfigError: the run has no such split.
        DataError: the file is missing or has changed.
    """
    if split not in manifest.data.splits:
        message = f"{run} has no split {split!r}"
        known = ", ".join(manifest.data.splits) or "none: pipe eval RUN FILE reads a file"
        raise ConfigError(message, f"splits of this run: {known}")
    recorded = manifest.data.splits[split]
    path = Path(recorded.path)
    if not path.exists():
        message = f"{path} is missing: the {split} file that {run} was trained with"
    elif file_digest(path) != recorded.sha256:
        message = f"{path} has changed since {run} was trained with it as the {split} file"
    else:
        names = () if recorded.part is None else recorded.part.without
        excluded = tuple(split_source(run, manifest, name) for name in names)
        return Source(
            path=path, reading=manifest.data.reading, part=recorded.part, excluded=excluded
        )
    kept = kept_source(run, manifest, split) if split == "dev" else None
    if kept is None:
        raise DataError(message, "restore the file, or use another: pipe eval RUN FILE")
    return kept
