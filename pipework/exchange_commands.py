"""The commands that exchange models with other programs: `pipe import` and `pipe publish`."""

from pathlib import Path
from typing import Annotated

import typer

TARGETS = "folder:DIR, hf://ORG/NAME[@REVISION], oci:DIR, oci://HOST/NAME:TAG, or mlflow:NAME"


def import_(
    source: Annotated[str, typer.Argument(help="folder or hub id of a checkpoint")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    data: Annotated[
        list[Path] | None, typer.Option(help="rows for the proof, with labels or without")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value; section.key= removes it")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run Python code of the source (auto_map)")
    ] = False,
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

        manifest = import_source(
            source, out, data or [], settings, progress, trust_remote_code=trust_remote_code
        )
    show_imported(out, manifest)


def publish(
    run: Annotated[Path, typer.Argument(help="run folder")],
    to: Annotated[str, typer.Option("--to", help=TARGETS)],
) -> None:
    """Write the model and its proven engines in a layout that other programs read.

    hf://ORG/NAME uploads the folder of folder:DIR to a model hub with the token of HF_TOKEN or of
    `hf auth login`. With HF_HUB_OFFLINE=1 it writes the folder NAME, which is uploaded later.
    """
    from pipework import console

    kind, remote, place = _target(to)
    command: str | None = None
    with console.progress() as progress:
        if kind == "folder":
            from pipework.export.publish.folder import publish_folder

            lines = publish_folder(run, Path(place), progress).lines(place)
        elif kind == "hf":
            from pipework.export.publish.hub import HubRepository, publish_hub

            upload = publish_hub(run, HubRepository.parse(place), progress)
            lines, command = upload.lines, upload.command
        elif kind == "mlflow":
            from pipework.export.publish.mlflow_model import publish_mlflow

            model = publish_mlflow(run, place, progress)
            lines = (f"{model.uri} with {', '.join(model.engines)}",)
        else:
            from pipework.export.publish.oci import publish_oci, push_image

            image = (
                push_image(run, place, progress)
                if remote
                else publish_oci(run, Path(place), progress)
            )
            lines = (f"{to} with {', '.join(image.engines)}, {image.digest}",)
    for line in lines:
        console.print_line(f"published: {line}")
    if command is not None:
        console.print_line(f"next: {command}")


def _target(to: str) -> tuple[str, bool, str]:
    """Return the kind of a target, whether it is remote, and its place."""
    from pipework.errors import ConfigError

    kind, _, place = to.partition(":")
    remote = place.startswith("//")
    place = place.removeprefix("//")
    local = kind in ("folder", "oci", "mlflow")
    if not place or not (kind in ("oci", "hf") if remote else local):
        message = f"--to {to}: expected {TARGETS}"
        raise ConfigError(message, "for example --to folder:published")
    return kind, remote, place
