"""Make one run of several runs that have the same encoder: `pipe combine`.

Each run becomes a head. The heads are compared with their runs on the dev rows of the runs.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipework.data.examples import Example
from pipework.data.kept_rows import keep_rows, sample_evenly
from pipework.errors import CheckFailedError
from pipework.export.publish.folder import check_new, new_folder
from pipework.export.run_heads import RunHead, check_inputs, check_names, kept_reading, open_head
from pipework.progress import Progress, counted
from pipework.run_folder.manifest import (
    Data,
    Identity,
    Manifest,
    Model,
    Split,
    write_manifest,
)
from pipework.scoring.evaluation import infer_all, label_array
from pipework.tasks.heads import HeadsTask
from pipework.tasks.kinds import metric_in_words
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import open_encoder, token_digest
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.combined import CombinedClassifier, check_encoders

MAX_DIFFERENCE = 1e-4  # of a logit, between a head and its run
COMPARED_ROWS = 1000  # of each run
DEV_ROWS = 10_000  # of all heads: as many as a parity check computes


def combine(runs: Mapping[str, Path], out: Path, progress: Progress) -> Manifest:
    """Write the run folder `out` with a head for each run, by name.

    Raises:
        ConfigError: a name or a run does not fit, or the encoders of the runs differ.
        DataError: the dev rows of a run are missing.
        RunFolderError: a run cannot be read, or `out` exists.
        CheckFailedError: a head answers differently than its run.
    """
    check_names(runs)
    check_new(out)
    heads = {name: open_head(name, run, DEV_ROWS // len(runs)) for name, run in runs.items()}
    check_inputs(heads)
    check_encoders({str(head.run): head.engine.model for head in heads.values()})
    task = HeadsTask.of({name: head.task for name, head in heads.items()})
    first = next(iter(heads.values()))
    sampled = {
        name: [*sample_evenly(head.dev, len(head.dev), COMPARED_ROWS).values()]
        for name, head in heads.items()
    }
    encoder = open_encoder(first.run, first.manifest)
    expected = {
        name: head.engine.infer(encoder.encode(sampled[name])) for name, head in heads.items()
    }
    model = CombinedClassifier({name: head.engine.model for name, head in heads.items()}).eval()
    engine = replace(first.engine, model=model, row_offsets=task.row_offsets)
    for name, rows in sampled.items():
        _compare(name, task, expected[name], engine.infer(encoder.encode(rows)), rows, progress)
    with new_folder(out) as folder:
        shutil.copyfile(
            first.run / first.manifest.input.tokenizer.path,
            folder / first.manifest.input.tokenizer.path,
        )
        (folder / checkpoint.FOLDER).mkdir()
        model.save(folder / checkpoint.FOLDER)
        checkpoint.add_tokenizer(folder, first.manifest.input)
        manifest = Manifest(
            identity=Identity.new(out, seed=first.manifest.identity.seed),
            task=task,
            input=first.manifest.input,
            model=Model(
                family=first.manifest.model.family,
                head="combined",
                base=first.manifest.model.base,
                parameters=sum(parameter.numel() for parameter in model.parameters()),
                dtype=first.manifest.model.dtype,
                checkpoint=checkpoint.records(folder),
            ),
            data=_data(heads, task, engine, folder, out, progress),
        )
        write_manifest(folder, manifest)
    return manifest


def _compare(
    name: str,
    task: HeadsTask,
    expected: Outputs,
    found: Outputs,
    rows: list[Example],
    progress: Progress,
) -> None:
    """Check that a head has the logits of its run.

    Raises:
        CheckFailedError: a logit differs.
    """
    difference = float(np.abs(task.head(name, found).values - expected.values).max())
    if not difference <= MAX_DIFFERENCE:
        message = (
            f"head {name} differs from its run by up to {difference:.2g} in a logit over "
            f"{counted(len(rows), 'row')}, more than {MAX_DIFFERENCE:.0e}"
        )
        raise CheckFailedError(message, "leave it out, and report this with the two runs")
    progress.note(
        f"head {name}: logits within {difference:.1e} of its run over {counted(len(rows), 'row')}"
    )


def _data(
    heads: Mapping[str, RunHead],
    task: HeadsTask,
    engine: CheckpointEngine,
    folder: Path,
    out: Path,
    progress: Progress,
) -> Data:
    """Keep the rows of all heads, score them, and return the record."""
    rows = {
        split: _mixed([getattr(head, split) for head in heads.values()])
        for split in ("dev", "train")
    }
    splits = {}
    for split, examples in rows.items():
        if examples:
            kept = keep_rows(folder, split, examples)
            path = str(out.absolute() / kept.path)
            splits[split] = Split(path=path, sha256=kept.sha256, rows=len(examples), kept=kept)
    first = next(iter(heads.values()))
    encoder = open_encoder(first.run, first.manifest)
    encodings = encoder.encode(rows["dev"])
    outputs = infer_all(engine, encodings, progress)
    truth = label_array(rows["dev"], task, str(out), encoder)
    scores = {
        part.name: f"{metric_in_words(part.task.metric)} "
        f"{part.task.evaluate(part.of_labelled, part.truth).score:.4f} of {heads[part.name].run}"
        for part in task.parts(outputs, truth)
    }
    dev = task.evaluate(outputs, truth).metrics()
    return Data(
        reading=kept_reading(first.manifest.input, task.kind),
        splits=splits,
        findings=(),
        metrics={"dev": dev.model_copy(update={"tokens": token_digest(encodings)})},
        verdict="; ".join(f"head {name}: dev {score}" for name, score in scores.items()),
        failures=tuple(
            f"head {name}: {failure}"
            for name, head in heads.items()
            for failure in head.manifest.data.failures
        ),
    )


def _mixed(rows_of_heads: Sequence[Sequence[Example]]) -> list[Example]:
    """Return the rows of all heads, so that each part of them has rows of each head."""
    placed = [
        ((number + 0.5) / len(rows), head, row)
        for head, rows in enumerate(rows_of_heads)
        for number, row in enumerate(rows)
    ]
    return [row for _, _, row in sorted(placed, key=lambda item: item[:2])]
