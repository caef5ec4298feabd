"""The `pipe` command line: the list of commands, and how errors are printed."""

import sys
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from pipework.benchmarks.command import bench
from pipework.commands.inspection import check, doctor, show
from pipework.commands.models import export, import_, publish
from pipework.commands.prediction import predict
from pipework.commands.serving import serve
from pipework.commands.training import combine, evaluate, train, tune
from pipework.errors import ConfigError, PipeError, as_pipe_error

app = typer.Typer(
    help="From labelled text to a text classifier in production: train, export, serve, measure.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command()(check)
app.command()(train)
app.command()(tune)
app.command("eval")(evaluate)
app.command()(serve)
app.command()(bench)
app.command()(export)
app.command("import")(import_)
app.command()(combine)
app.command()(publish)
app.command()(predict)
app.command()(show)


def main() -> NoReturn:
    """Run a command; exit with 0, 1 (a bug), 2 (the user can fix it) or 3 (a check failed)."""
    from pipework.console import StandardOutput, exit_on_interrupt, print_error

    StandardOutput.install()
    try:
        with exit_on_interrupt():
            _run()
    except (PipeError, ModuleNotFoundError, OSError) as error:
        pipe_error = as_pipe_error(error)
        if pipe_error is None:
            raise
        print_error(pipe_error)
        sys.exit(pipe_error.exit_code)


def _run() -> NoReturn:
    try:
        sys.exit(app(standalone_mode=len(sys.argv) == 1) or 0)  # without words it prints the help
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = "pipe" if context is None else context.command_path
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        raise ConfigError(message, f"{command} --help") from error
    except SystemExit:
        sys.stdout.flush()
        raise


if __name__ == "__main__":
    main()
