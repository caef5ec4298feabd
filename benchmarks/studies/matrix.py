"""Every family with every head as every engine: `python -m pipework.benchmarks.studies.matrix --out FILE`.

Each cell is a real export: the engine is built, proven and recorded, or the reason why not is
kept. The rows are so few that one changed label is more than a proof lets through, so the limits
here are of differences; what a precision costs in score is measured on trained runs
(`pipework.benchmarks.studies.engines`).

The file is written after each cell. Started again, what is proven in it stays, and the rest is
tried again. With --model the family is the one of that checkpoint, whose encoder gets new heads.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from pipework.benchmarks.results_schema.provenance import Provenance, provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.engine_results import Cell, MatrixResult
from pipework.benchmarks.studies.families import Family
from pipework.benchmarks.studies.random_run import random_encoder, random_run
from pipework.benchmarks.studies.recorded_command import command
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.errors import ConfigError, PipeError
from pipework.export.config import ExportSettings
from pipework.export.plan import every
from pipework.export.run import export
from pipework.progress import Silent
from pipework.run_folder.engine_record import Precision, Variant
from pipework.train.config.model import Head
from pipework.train.model.legacy_configs import read_config

TINY = "two layers that learned 64 rows"
FEW_ROWS = {precision.value: {"flips": 0.1, "score_drop": 0.1} for precision in Precision}
SETTINGS = ExportSettings.model_validate({"tolerances": FEW_ROWS, "speed_s": 0.0})


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the cells asked for and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.matrix", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write or go on")
    parser.add_argument("--model", type=Path, help="a checkpoint, instead of tiny random ones")
    parser.add_argument("--weights", help="what to call its weights")
    parser.add_argument("--families", nargs="+", choices=[*Family], default=[*Family])
    parser.add_argument("--heads", nargs="+", choices=[*Head], default=[*Head])
    engines = {variant.label: variant for variant in every()}
    parser.add_argument("--engines", nargs="+", choices=[*engines], default=[*engines])
    given = parser.parse_args(arguments)
    variants = [engines[name] for name in given.engines]
    weights = TINY if given.model is None else given.weights or given.model.name
    families = given.families if given.model is None else [_family(given.model)]
    try:
        check_writable(given.out)
        stored = _stored(given.out, weights)
        cells = {} if stored is None else {cell.key: cell for cell in stored.cells}
        earlier = () if stored is None else _earlier(stored)
        for family, head in product(families, given.heads):
            done = {key for key, cell in cells.items() if cell.reason is None}
            missing = [one for one in variants if (family, head, one.label) not in done]
            for cell in fill(family, Head(head), missing, given.model):
                cells[cell.key] = cell
                result = MatrixResult(
                    weights=weights,
                    cells=tuple(cells.values()),
                    command=command(parser, given),
                    provenance=provenance(),
                    earlier=earlier,
                )
                write_result(given.out, result)
                sys.stdout.write(f"{' '.join(cell.key)}: {_words(cell)}\n")
                sys.stdout.flush()
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    return 0


def fill(
    family: str, head: Head, variants: Sequence[Variant], model: Path | None = None
) -> Iterator[Cell]:
    """Export one family with one head as some engines; `model` is None for a tiny random one."""
    if not variants:
        return
    with tempfile.TemporaryDirectory(prefix="pipework-matrix-") as name:
        folder = Path(name)
        encoder = model or random_encoder(Family(family), folder / "encoder")
        run = random_run(encoder, head, folder / "run")
        for variant in variants:
            yield _cell(family, head, variant, run)


def _cell(family: str, head: Head, variant: Variant, run: Path) -> Cell:
    max_abs = reason = None
    try:
        (record,) = export(run, Silent(), [variant], settings=SETTINGS)
        max_abs = None if record.parity is None else record.parity.max_abs
    except PipeError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  (whatever a library says is the reason)
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        reason = reason.splitlines()[0].replace(str(run), "RUN")
    return Cell(family=family, head=head, engine=variant.label, max_abs=max_abs, reason=reason)


def _stored(path: Path, weights: str) -> MatrixResult | None:
    """Return an earlier result, if there is one."""
    if not path.exists():
        return None
    result = read_stored(path)
    if not isinstance(result, MatrixResult) or result.weights != weights:
        message = f"{path} holds another result"
        raise ConfigError(message, "give another --out")
    return result


def _earlier(stored: MatrixResult) -> tuple[Provenance, ...]:
    """Return where the cells of a result come from, if not from what runs now."""
    made = (*stored.earlier, stored.provenance)
    return tuple(one for one in made if one.git_commit != provenance().git_commit)


def _family(model: Path) -> str:
    return str(read_config(str(model)).model_type)


def _words(cell: Cell) -> str:
    if cell.reason is not None:
        return cell.reason
    return "built, not run" if cell.max_abs is None else f"{cell.max_abs:.1e}"


if __name__ == "__main__":
    sys.exit(main())
