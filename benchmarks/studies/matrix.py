"""Export all families and heads: `python -m pipework.benchmarks.studies.matrix --out FILE`.

Each cell is a real export: the engine is built, proven and recorded, or the reason of the failure
is stored. With 22 dev rows a single changed label exceeds the usual tolerances, so the limits here
are on logit differences; the effect of a precision on the score is measured on trained runs
(`pipework.benchmarks.studies.engines`).

The file is written after each cell. Started again, the study keeps proven cells and repeats the
others. With --model, the family is that of the checkpoint, whose encoder gets new heads.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from pipework.benchmarks.results_schema.provenance import Provenance, provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.records.engine_results import Cell, MatrixResult
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.script import command, report_errors
from pipework.benchmarks.studies.tiny_encoders import (
    EncoderFamily,
    publish,
    sample_examples,
    tokenizer_for,
)
from pipework.errors import ConfigError, PipeError
from pipework.export.config import ExportSettings
from pipework.export.plan import all_variants
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Precision, Variant
from pipework.run_folder.files import check_writable
from pipework.text.encoding import MARKS
from pipework.train.config.model import Head
from pipework.train.config.run_config import Config
from pipework.train.model.encoder_configs import read_config
from pipework.train.run import train

TINY = "two layers that learned 64 rows"
FEW_ROWS = {precision.value: {"flips": 0.1, "score_drop": 0.1} for precision in Precision}
SETTINGS = ExportSettings.model_validate({"tolerances": FEW_ROWS, "speed_s": 0.0})
DEV_EVERY = 3  # dev rows are every third train row
LENGTH = 128  # much longer than the 7 tokens with which a graph is traced
RATE = 0.1  # learning rate times the width of the encoder


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen cells and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.matrix", description=__doc__
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the .json file to write or complete"
    )
    parser.add_argument("--model", type=Path, help="a checkpoint instead of tiny random encoders")
    parser.add_argument("--weights", help="name of its weights in the table")
    parser.add_argument("--families", nargs="+", choices=[*EncoderFamily], default=[*EncoderFamily])
    parser.add_argument("--heads", nargs="+", choices=[*Head], default=[*Head])
    engines = {variant.label: variant for variant in all_variants()}
    parser.add_argument("--engines", nargs="+", choices=[*engines], default=[*engines])
    options = parser.parse_args(arguments)
    variants = [engines[name] for name in options.engines]
    weights = TINY if options.model is None else options.weights or options.model.name
    families = options.families if options.model is None else [_family(options.model)]
    check_writable(options.out)
    stored = _stored(options.out, weights)
    cells = {} if stored is None else {cell.key: cell for cell in stored.cells}
    earlier = () if stored is None else _earlier(stored)
    for family, head in product(families, options.heads):
        done = {key for key, cell in cells.items() if cell.reason is None}
        missing = [variant for variant in variants if (family, head, variant.label) not in done]
        for cell in fill(family, Head(head), missing, options.model):
            cells[cell.key] = cell
            result = MatrixResult(
                weights=weights,
                cells=tuple(cells.values()),
                command=command(parser, options),
                provenance=provenance(),
                earlier=earlier,
            )
            write_result(options.out, result)
            sys.stdout.write(f"{' '.join(cell.key)}: {_outcome(cell)}\n")
            sys.stdout.flush()
    return 0


def fill(
    family: str, head: Head, variants: Sequence[Variant], model: Path | None = None
) -> Iterator[Cell]:
    """Yield the cells of one family with one head; `model` is None for a tiny random encoder."""
    if not variants:
        return
    with tempfile.TemporaryDirectory(prefix="pipework-matrix-") as name:
        folder = Path(name)
        encoder = model or random_encoder(EncoderFamily(family), folder / "encoder")
        run = random_run(encoder, head, folder / "run")
        for variant in variants:
            yield _cell(family, head, variant, run)


def random_encoder(family: EncoderFamily, folder: Path) -> Path:
    """Write a tiny random encoder and a tokenizer with entity marks; return the folder."""
    tokenizer = tokenizer_for(family, [example.text for example in sample_examples()])
    tokenizer.add_tokens([*MARKS])
    publish(family, tokenizer, folder)
    return folder


def random_run(encoder: Path, head: Head, run: Path) -> Path:
    """Train an encoder with a new head for a few steps on a few rows of the sample; return `run`.

    The logits then differ between classes like those of a real model, and a relatively large
    parity error is detected. For the entity head, the halves of each text are marked as entities.
    """
    marked = head is Head.ENTITY
    rows = [
        f"{_marked(example.text) if marked else example.text}\t{example.label}\n"
        for example in sample_examples()
    ]
    for name, part in (("train", rows), ("dev", rows[::DEV_EVERY])):
        run.with_name(f"{name}.tsv").write_text("".join(part), encoding="utf-8")
    width = int(read_config(str(encoder)).hidden_size)
    config = {
        "data": {
            "root": run.parent,
            "train": "train.tsv",
            "dev": "dev.tsv",
            "header": False,
            "marked": marked,
            "columns": {"text": 0, "label": 1},
        },
        "model": {"name": str(encoder), "head": head, "max_length": LENGTH},
        "train": {
            "epochs": 15,
            "batch_size": 16,
            "learning_rate": RATE / width,
            "weight_decay": 0.0,
            "schedule": "constant",
            "precision": "fp32",
            "report": False,
        },
    }
    train(Config.model_validate(config), run, NullProgress())
    return run


def _marked(text: str) -> str:
    middle = len(text) // 2
    return f"<e1>{text[:middle]}</e1><e2>{text[middle:]}</e2>"


def _cell(family: str, head: Head, variant: Variant, run: Path) -> Cell:
    max_abs = reason = None
    try:
        (record,) = export(run, NullProgress(), [variant], settings=SETTINGS)
        max_abs = None if record.parity is None else record.parity.max_abs
    except PipeError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  (any error of a library is recorded as the reason)
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        reason = reason.splitlines()[0].replace(str(run), "RUN")
    return Cell(family=family, head=head, engine=variant.label, max_abs=max_abs, reason=reason)


def _stored(path: Path, weights: str) -> MatrixResult | None:
    """Return the result that the file already holds, if any."""
    if not path.exists():
        return None
    result = read_stored(path)
    if not isinstance(result, MatrixResult) or result.weights != weights:
        message = f"{path} holds another result: expected a matrix of {weights}"
        raise ConfigError(message, "choose another --out")
    return result


def _earlier(stored: MatrixResult) -> tuple[Provenance, ...]:
    """Return the provenance of cells that were measured at other commits."""
    origins = (*stored.earlier, stored.provenance)
    return tuple(origin for origin in origins if origin.git_commit != provenance().git_commit)


def _family(model: Path) -> str:
    return str(read_config(str(model)).model_type)


def _outcome(cell: Cell) -> str:
    if cell.reason is not None:
        return cell.reason
    return "built, not run" if cell.max_abs is None else f"{cell.max_abs:.1e}"


if __name__ == "__main__":
    sys.exit(main())
