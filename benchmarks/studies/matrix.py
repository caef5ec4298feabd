"""Export all families and heads: `python -m pipework.benchmarks.studies.matrix`.

Each cell is a real export: the engine is built, proven and recorded, or the reason of the failure
is stored. With 22 dev rows a single changed label exceeds the usual tolerances, so the limits here
are on logit differences; the effect of a precision on the score is measured on trained runs
(`pipework.benchmarks.studies.engines`).

With --model, the family is the family of the checkpoint, whose encoder gets new heads.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.records.grid_results import Cell, GridResult, column_of
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.benchmarks.studies.tiny_encoders import (
    EncoderFamily,
    publish,
    sample_examples,
    tokenizer_for,
)
from pipework.errors import PipeError
from pipework.export.config import ExportSettings
from pipework.export.plan import all_variants
from pipework.export.run import export
from pipework.progress import NullProgress, Progress
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
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
# Without grouped int8: the layers of the tiny encoders have fewer inputs than a group.
VARIANTS = tuple(
    one
    for one in all_variants()
    if one.scaling is not Scaling.GROUPED and one.layout is not Layout.VARLEN
)
RATE = 0.1  # learning rate times the width of the encoder


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen cells and store the result; return the exit code."""
    parser = study_parser("matrix", __doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint instead of tiny random encoders")
    parser.add_argument("--weights", help="name of its weights in the table")
    parser.add_argument("--families", nargs="+", choices=[*EncoderFamily], default=[*EncoderFamily])
    parser.add_argument("--heads", nargs="+", choices=[*Head], default=[*Head])
    engines = {variant.label: variant for variant in VARIANTS}
    parser.add_argument("--engines", nargs="+", choices=[*engines], default=[*engines])
    options = parser.parse_args(arguments)
    variants = [engines[name] for name in options.engines]
    weights = TINY if options.model is None else options.weights or options.model.name
    families = (
        options.families if options.model is None else [read_config(str(options.model)).model_type]
    )
    words = command(parser, options)
    pairs = product(families, map(Head, options.heads))

    def measured(progress: Progress) -> GridResult:
        cells: list[Cell] = []
        for family, head in pairs:
            for cell in fill(family, head, variants, options.model):
                cells.append(cell)
                outcome = cell.reason or cell.text or f"{cell.value:.1e}"
                progress.note(f"{' '.join(cell.row)} {cell.column}: {outcome}")
        return GridResult(
            experiment="matrix",
            names=("family", "head"),
            weights=weights,
            cells=tuple(cells),
            command=words,
            provenance=provenance(),
        )

    stored(options.out, measured)
    return 0


def fill(
    family: str, head: Head, variants: Sequence[Variant], model: Path | None = None
) -> Iterator[Cell]:
    """Yield the cells of one family with one head; `model` is None for a tiny random encoder."""
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

    The logits then differ between classes as in a real model, and a relatively large
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
    column, packed = column_of(variant)
    value = reason = None
    try:
        (record,) = export(run, NullProgress(), [variant], settings=SETTINGS)
        value = None if record.parity is None else record.parity.max_abs
    except PipeError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001  (any error of a library is recorded as the reason)
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        reason = reason.splitlines()[0].replace(str(run), "RUN")
    built = value is None and reason is None
    return Cell(
        row=(family, head),
        column=column,
        packed=packed,
        value=value,
        text="built" if built else "",
        reason=reason,
    )


if __name__ == "__main__":
    sys.exit(main())
