"""The commands `pipe train`, `pipe tune`, `pipe eval` and `pipe combine`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipework.commands.options import Columns, EngineName, Json, Run, Sets, note_torch, print_result
from pipework.errors import CheckFailedError, ConfigError, PipeError, StoppedError


def train(
    config: Annotated[str, typer.Argument(help="config file or recipe name")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
    overrides: Sets = None,
    nproc: Annotated[int, typer.Option(min=1, help="training processes on this machine")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume from the last checkpoint")
    ] = False,
) -> None:
    """Fine-tune a checkpoint, or train a preset from scratch, and write a run folder."""
    from pipework import console
    from pipework.progress import NullProgress
    from pipework.terminal import show_trained
    from pipework.train.config.run_config import load_config

    loaded = load_config(config, overrides or [])  # before torch, so that its errors are fast
    progress = console.progress()
    if "RANK" not in os.environ:
        note_torch(progress)
    from pipework.train.loop.distributed import is_worker, join, launch  # imports torch: seconds

    if nproc > 1 and not is_worker():
        sys.exit(launch(sys.argv[1:], nproc))
    from pipework.train.run import train_all

    with join() as world:
        shown = progress if world.leads else NullProgress()
        try:
            runs = train_all(loaded, out, shown, world=world, resume=resume)
        except PipeError as error:
            shared = isinstance(error, CheckFailedError | StoppedError)  # raised in every process
            if error.reported or (shared and not world.leads):
                sys.exit(error.exit_code)
            raise
        finally:
            progress.close()
        if world.leads:
            show_trained(runs)


def tune(
    config: Annotated[str, typer.Argument(help=r"config file or recipe with a section \[tune]")],
    out: Annotated[Path, typer.Option("--out", help="folder of the search")],
    trials: Annotated[int | None, typer.Option(min=1, help="trials, over all processes")] = None,
    seeds: Annotated[int | None, typer.Option(min=2, help="seeds of the final runs")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes on this machine")] = 1,
    overrides: Sets = None,
) -> None:
    """Search settings; train the best and the unchanged config again with several seeds.

    The same command continues a search, and joins one that runs on this or another machine.
    """
    from pipework import console
    from pipework.machine import cpu_limit
    from pipework.progress import NullProgress
    from pipework.train import LAUNCHER
    from pipework.train.tune.search_space import SearchSpace

    numbers = [
        f"tune.{key}={value}"
        for key, value in (("trials", trials), ("seeds", seeds))
        if value is not None
    ]
    space = SearchSpace.load(config, [*(overrides or []), *numbers])
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", f"{max(1, cpu_limit() // jobs)}")
    with console.progress() as progress:
        shown = NullProgress() if LAUNCHER in os.environ else progress
        note_torch(shown)
        from pipework.train.tune.report import summary  # imports torch: seconds
        from pipework.train.tune.run import check_chosen
        from pipework.train.tune.run import tune as search

        result = search(space, out, jobs, shown)
    *lines, following = summary(out, result)
    for line in lines:
        console.print_line(line)
    check_chosen(out, result)
    console.print_line(following)


def evaluate(
    run: Run,
    file: Annotated[Path | None, typer.Argument(help="labelled file instead of a split")] = None,
    columns: Columns = None,
    split: Annotated[str | None, typer.Option(help="train, dev (default) or test")] = None,
    engine: EngineName = None,
    as_json: Json = False,
) -> None:
    """Evaluate the checkpoint or an engine: scores, calibration, classes, confusion matrix."""
    if file is not None and split is not None:
        message = "expected a file or --split, found both"
        raise ConfigError(message)
    from pipework import console
    from pipework.export.inference import evaluate_run
    from pipework.terminal import show_evaluation

    with console.progress() as progress:
        evaluation = evaluate_run(run, file, split or "dev", engine, progress, columns)
    print_result(evaluation, show_evaluation, as_json=as_json)


def combine(
    runs: Annotated[list[str], typer.Argument(metavar="NAME=RUN...", help="heads and their runs")],
    out: Annotated[Path, typer.Option("--out", help="run folder to write")],
) -> None:
    """Make one model of several runs with the same encoder: one pass, a prediction per head.

    The runs are trained from the same model.name with model.freeze = true, so that only their heads
    differ. Each head is compared with its run.
    """
    from pipework import console
    from pipework.terminal import show_combined

    named = [_named(run) for run in runs]
    if len({name for name, _ in named}) < len(named):
        message = f"expected different names of heads, found {', '.join(name for name, _ in named)}"
        raise ConfigError(message, "name them: pipe combine topic=runs/a names=runs/b --out RUN")
    with console.progress() as progress:
        note_torch(progress)
        from pipework.export.combine import combine as combine_runs

        manifest = combine_runs(dict(named), out, progress)
    show_combined(out, manifest)


def _named(run: str) -> tuple[str, Path]:
    """Return the name of a head and the folder of its run; without a name that of the folder."""
    name, equals, path = run.partition("=")
    if equals and not Path(run).exists():
        return name, Path(path)
    return Path(run).absolute().name, Path(run)
