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

    SOURCE is a sequence classifier of transformers, its ONNX graph, a TensorFlow 1 checkpoint, a
    LoRA adapter, a SetFit classifier, or a cross-encoder of sentence-transformers. With labelled
    rows (csv, tsv or jsonl with the columns text, text_pair and label) the model and its engines
    are scored.
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
    to: Annotated[
        str, typer.Option("--to", help="folder:DIR, oci:DIR, oci://HOST/NAME:TAG, or mlflow:NAME")
    ],
) -> None:
    """Write the model and its proven engines in a layout that other programs read."""
    from pipework import console
    from pipework.errors import ConfigError

    kind, _, place = to.partition(":")
    if kind not in ("folder", "oci", "mlflow") or not place.removeprefix("//"):
        message = f"--to {to}: expected folder:DIR, oci:DIR, oci://HOST/NAME:TAG or mlflow:NAME"
        raise ConfigError(message, "for example --to folder:published")
    with console.progress() as progress:
        if kind == "folder":
            from pipework.export.publish.folder import publish_folder

            published = publish_folder(run, Path(place), progress)
            lines = [f"{place}/{engine.file} ({engine.name})" for engine in published.engines]
            lines = lines or [f"{place}, without engines"]
        elif kind == "mlflow":
            from pipework.export.publish.mlflow_model import publish_mlflow

            model = publish_mlflow(run, place, progress)
            lines = [f"{model.uri} with {', '.join(model.engines)}"]
        else:
            from pipework.export.publish.oci import publish_oci, push_image

            remote = place.removeprefix("//")
            image = (
                publish_oci(run, Path(place), progress)
                if remote == place
                else push_image(run, remote, progress)
            )
            lines = [f"{to} with {', '.join(image.engines)}, {image.digest}"]
    for line in lines:
        console.print_line(f"published: {line}")
