"""The commands that change nothing: `pipe doctor`, `pipe check` and `pipe show`."""

from pathlib import Path
from typing import Annotated

import typer

from pipework.commands.options import Json, Run, Sets, print_result
from pipework.errors import ConfigError


def doctor(as_json: Json = False) -> None:
    """Show the devices, stages and engines usable on this machine, and how to add the others."""
    from pipework.export.doctor import diagnose
    from pipework.terminal import show_diagnosis

    diagnosis = diagnose()
    print_result(diagnosis, show_diagnosis, as_json=as_json)


def check(
    inputs: Annotated[list[str], typer.Argument(help="config file, recipe name, or data files")],
    overrides: Sets = None,
    rows: Annotated[
        Path | None, typer.Option(help=".csv file to write, with the rows that are in two splits")
    ] = None,
    label_errors: Annotated[
        Path | None, typer.Option(help=".csv file to write, with labels that are probably wrong")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the data: rows, labels, lengths, duplicates, leaks, conflicts, unknown tokens."""
    from pipework import console
    from pipework.terminal import show_report
    from pipework.train.config.run_config import is_config
    from pipework.train.data_report.data_report import check_config, check_files

    by_config = len(inputs) == 1 and is_config(inputs[0])
    wrong_labels = None
    if label_errors is not None:
        from pipework.train.linear.label_errors import LabelErrorsFile

        if not by_config or label_errors == rows:
            message = "--label-errors needs a config, and another file than --rows"
            raise ConfigError(message, f"pipe check CONFIG --label-errors {label_errors}")
        wrong_labels = LabelErrorsFile.of(inputs[0], overrides or [], label_errors)
    with console.progress() as progress:
        if by_config:
            report = check_config(inputs[0], overrides or [], progress, rows)
        else:
            report = check_files([*map(Path, inputs)], overrides or [], progress, rows)
        if wrong_labels is not None:
            wrong_labels.write(progress)
    print_result(report, show_report, as_json=as_json)


def show(
    run: Run,
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option(help="HTML page with plots of the engines to write")
    ] = None,
    overrides: Sets = None,
) -> None:
    """Show the contents of a run folder: model, data, scores, engines with parity and speed.

    With the settings engine.* of a server, the default engine is the one that this server uses.
    """
    from pipework import console
    from pipework.run_folder.manifest import read_manifest
    from pipework.serve.config import ServeSettings
    from pipework.settings import load_settings
    from pipework.terminal import show_manifest

    manifest, settings = read_manifest(run), load_settings(ServeSettings, None, overrides or [])
    if html is not None:
        from pipework.export.report import write_page

        write_page(html, manifest, settings.engine)
        console.print_line(f"page: {html}")
        return
    print_result(
        manifest, lambda shown: show_manifest(run, shown, settings.engine), as_json=as_json
    )
