"""The commands `pipe import`, `pipe export` and `pipe publish`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipework.commands.options import Run, Sets, note_torch
from pipework.errors import ConfigError
from pipework.run_folder.engine_record import Layout, Precision

if TYPE_CHECKING:
    from pipework.export.config import ExportSettings

FORMATS = "onnx, openvino, tensorrt, triton, cascade, or auto: all engines that this machine runs"
TARGETS = "folder:DIR, hf://ORG/NAME[@REVISION], oci:DIR, oci://HOST/NAME:TAG, or mlflow:NAME"


def import_(
    source: Annotated[str, typer.Argument(help="folder or hub id of a checkpoint")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    data: Annotated[
        list[Path] | None, typer.Option(help="rows for the proof, with labels or without")
    ] = None,
    overrides: Sets = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run Python code of the source (auto_map)")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="also if the scores on labelled rows are too low")
    ] = False,
    allow_unused: Annotated[
        list[str] | None,
        typer.Option(help="part of the encoder that transformers may ignore: a name in the error"),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--as", metavar="FAMILY", help="family of a class that transformers lacks"),
    ] = None,
) -> None:
    """Make a run folder from the checkpoint of another program, and prove that it is the same.

    SOURCE is a sequence classifier of transformers, its ONNX graph, a TensorFlow 1 checkpoint, a
    peft adapter, a SetFit classifier, or a cross-encoder of sentence-transformers. With labelled
    rows (csv, tsv or jsonl with the columns text, text_pair and label) the model and its engines
    are scored.
    """
    from pipework import console
    from pipework.export.config import ImportSettings
    from pipework.settings import load_settings
    from pipework.terminal import show_imported

    forced = ["force=true"] if force else []
    forced += [f"allow_unused={json.dumps(allow_unused)}"] if allow_unused else []
    forced += [f"family={family}"] if family else []
    settings = load_settings(ImportSettings, None, [*(overrides or []), *forced])
    with console.progress() as progress:
        note_torch(progress)
        from pipework.export.importing.run import import_source  # imports torch: seconds

        manifest = import_source(
            source, out, data or [], settings, progress, trust_remote_code=trust_remote_code
        )
    show_imported(out, manifest)


def export(
    run: Run,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=FORMATS)],
    precision: Annotated[Precision | None, typer.Option(help="numeric precision")] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(help="batch layout: a text per row, several, or all without padding (GPU)"),
    ] = None,
    repository: Annotated[
        Path | None, typer.Option(help="Triton repository to add a proven engine to")
    ] = None,
    first: Annotated[
        Path | None, typer.Option(help="run that answers first in a cascade; default: RUN/linear")
    ] = None,
    overrides: Sets = None,
) -> None:
    """Build engines from the checkpoint, prove their parity with it, and record them."""
    from pipework.export.plan import AUTO, CASCADE, TRITON, select_variants

    if (to == TRITON) != (repository is not None):
        message = "--to triton and --repository must be used together, found one of them"
        raise ConfigError(message, "pipe export RUN --to triton --repository DIR")
    if repository is not None:
        _add_version(run, repository, overrides or [], precision, layout)
        return
    if first is not None and to != CASCADE:
        message = f"--first is for --to cascade, found --to {to}"
        raise ConfigError(message, f"pipe export {run} --to cascade --first {first}")
    from pipework import console
    from pipework.export.config import ExportSettings
    from pipework.run_folder.manifest import LockedRun
    from pipework.settings import load_settings
    from pipework.terminal import show_cascade, show_exported

    settings = load_settings(ExportSettings, None, overrides or [])
    _check_unchanged(run, settings, reads_only=to == CASCADE)
    with LockedRun.open(run) as locked:
        variants = select_variants(locked.manifest, to, precision, layout)
        with console.progress() as progress:
            note_torch(progress)
            if to == CASCADE:
                from pipework.export.cascade import export_cascade  # imports torch: seconds

                show_cascade(run, export_cascade(locked, first, settings.cascade, progress))
                return
            from pipework.export.ranking import keep_best
            from pipework.export.run import export_locked  # imports torch: seconds

            built = export_locked(locked, progress, variants, settings=settings)
            keep = settings.keep if to == AUTO and settings.rebuild else 0
            records = keep_best(locked, built, keep, progress)
        show_exported(run, locked.manifest, records)


def _check_unchanged(run: Path, settings: "ExportSettings", *, reads_only: bool) -> None:
    if reads_only and settings.changes_answers:
        message = "decision.* and windows.* change a model, which this export only reads"
        raise ConfigError(message, f"first: pipe export {run} --to auto, with these settings")


def _add_version(
    run: Path,
    repository: Path,
    overrides: list[str],
    precision: Precision | None,
    layout: Layout | None,
) -> None:
    from pipework import console
    from pipework.export.config import ExportSettings
    from pipework.export.triton.model_repository import EngineChoice, add_version
    from pipework.settings import load_settings

    settings = load_settings(ExportSettings, None, overrides)
    _check_unchanged(run, settings, reads_only=True)
    choice = EngineChoice(precision=precision, layout=layout)
    added = add_version(run, repository, settings.triton, choice, console.progress())
    status = "added" if added.new else "already present"
    console.print_line(f"{status}: {added.engine}, {added.folder}")
    console.print_line(f"next: pipe serve {repository} --backend triton")


def publish(
    run: Run,
    to: Annotated[str, typer.Option("--to", help=TARGETS)],
) -> None:
    """Write the model and its proven engines in a layout that other programs read.

    hf://ORG/NAME uploads the folder of folder:DIR to a model hub with the token of HF_TOKEN or of
    `hf auth login`. With HF_HUB_OFFLINE=1 it writes the folder NAME, which is uploaded later.
    """
    from pipework import console

    kind, remote, place = _target(to)
    lines: Sequence[str]
    command: str | None = None
    with console.progress() as progress:
        if kind == "folder":
            from pipework.export.publish.folder import publish_folder

            lines = publish_folder(run, Path(place), progress).lines(place)
        elif kind == "hf":
            from pipework.export.publish.hub import HubRepository, publish_hub

            lines, command = publish_hub(run, HubRepository.parse(place), progress)
        elif kind == "mlflow":
            from pipework.export.publish.mlflow_model import publish_mlflow

            lines = (publish_mlflow(run, place, progress),)
        else:
            from pipework.export.publish.oci import publish_oci, push_image

            engines, digest = (
                push_image(run, place, progress)
                if remote
                else publish_oci(run, Path(place), progress)
            )
            lines = (f"{to} with {', '.join(engines)}, {digest}",)
    for line in lines:
        console.print_line(f"published: {line}")
    if command is not None:
        console.print_line(f"next: {command}")


def _target(to: str) -> tuple[str, bool, str]:
    """Return the kind of a target, whether it is remote, and its place."""
    kind, _, place = to.partition(":")
    remote = place.startswith("//")
    place = place.removeprefix("//")
    local = kind in ("folder", "oci", "mlflow")
    if not place or not (kind in ("oci", "hf") if remote else local):
        message = f"--to {to}: expected {TARGETS}"
        raise ConfigError(message, "for example --to folder:published")
    return kind, remote, place
