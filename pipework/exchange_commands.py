"""The commands that exchange models with other programs: `pipe import` and `pipe publish`."""

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[str, typer.Argument(help="folder or hub id of a checkpoint")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    data: Annotated[
        list[Path] | None, typer.Option(help="rows for the proof, with labels or without")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value; section.key= removes it")
    ] = None,
) -> None:
    """Make a run folder from the checkpoint of another program, and prove that it is the same.

    SOURCE is a sequence classifier of transformers or a cross-encoder of sentence-transformers.
    With labelled rows (csv, tsv or jsonl with the columns text, text_pair and label) the model and
    its engines are scored.
    """
    from pipework import console
    from pipework.export.config import ImportSettings
    from pipework.settings import load_settings
    from pipework.terminal import show_imported

    settings = load_settings(ImportSettings, None, overrides or [])
    with console.progress() as progress:
        progress.note("loading torch")
        from pipework.export.importing.run import import_source  # imports torch: seconds

        manifest = import_source(source, out, data or [], settings, progress)
    show_imported(out, manifest)


def publish(
    run: Annotated[Path, typer.Argument(help="run folder")],
    to: Annotated[str, typer.Option("--to", help="folder:DIR, the layout of model hubs")],
) -> None:
    """Write the model and its proven engines in a layout that other programs read."""
    from pipework import console
    from pipework.errors import ConfigError

    kind, _, place = to.partition(":")
    if kind != "folder" or not place:
        message = f"--to {to}: expected folder:DIR"
        raise ConfigError(message, "for example --to folder:published")
    with console.progress() as progress:
        progress.note("loading torch")
        from pipework.export.publish.folder import publish_folder

        published = publish_folder(run, Path(place), progress)
    for engine in published.engines:
        console.print_line(f"published: {engine.file} ({engine.name})")
    console.print_line(f"model card: {Path(place) / 'README.md'}")
