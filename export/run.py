"""An export from run folder to recorded engine: build, prove, and only then record."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from export.answer import open_encoder, split_source
from export.checkpoint2onnx import EXPORTER, OPSET, checkpoint_to_onnx
from export.parity import TOLERANCES, Difference, Row, Verdict, grid_rows, prove
from pipework.errors import CheckFailedError, DataError
from pipework.evaluation import truth
from pipework.examples import Example
from pipework.lock import sole_writer
from pipework.manifest import (
    EngineFormat,
    EngineRecord,
    FileRecord,
    Layout,
    Manifest,
    Precision,
    file_digest,
    read_manifest,
    verify_files,
    write_manifest,
)
from pipework.padding import Padding
from pipework.progress import Progress, Silent
from serve.engines.onnxruntime import OnnxRuntimeEngine
from train.evaluate import open_reference

ENGINES = "engines"
NAME = "onnx-fp32"
DEV_ROWS = 10_000

Convert = Callable[[Path, Manifest, Path], None]


def export(run: Path, progress: Progress, convert: Convert = checkpoint_to_onnx) -> EngineRecord:
    """Build the ONNX engine of a run, prove it, and record it in the manifest.

    The graph is built under another name and proven there; it gets the name that its digest
    gives only when it has passed, and an engine that it replaces goes after the manifest names
    the new one. So at any moment each engine that the manifest records is whole and proven.

    Args:
        run: the run folder.
        progress: hears of the stages.
        convert: writes the graph of a run to a path.

    Raises:
        CheckFailedError: the engine differs from the checkpoint; the details are a table. Nothing
            is recorded and nothing is left.
        RunFolderError: the run folder does not hold what its manifest says.
        DataError: the dev rows that the proof needs are not there.
    """
    read_manifest(run)  # for its clear words, where there is no run to lock
    with sole_writer(run):
        manifest = read_manifest(run)
        verify_files(run, (manifest.input.tokenizer, *manifest.model.checkpoint))
        _sweep(run, manifest, progress)
        examples = _dev_rows(run, manifest)
        graph = run / ENGINES / NAME / "model.partial"
        graph.parent.mkdir(parents=True, exist_ok=True)
        try:
            progress.note(f"building {NAME}")
            convert(run, manifest, graph)
            verdict = _prove(run, manifest, graph, examples, progress)
            if not verdict.parity.passed:
                raise _refusal(verdict)
            return _record(run, graph, verdict)
        finally:
            graph.unlink(missing_ok=True)
            _sweep(run, read_manifest(run), Silent())


def _dev_rows(run: Path, manifest: Manifest) -> list[Example]:
    source = split_source(run, manifest, "dev")
    examples = list(islice(source.rows(), DEV_ROWS))
    if not examples:
        message = f"{source.path} holds no rows to prove an engine on"
        raise DataError(message)
    return examples


def _prove(
    run: Path, manifest: Manifest, path: Path, examples: Sequence[Example], progress: Progress
) -> Verdict:
    encoder = open_encoder(run, manifest)
    dev = [
        Row(name=f"dev row {number}", encoding=encoding)
        for number, encoding in enumerate(encoder.encode(examples), start=1)
    ]
    opened = partial(
        OnnxRuntimeEngine,
        path,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
    )
    with (
        open_reference(run, manifest) as reference,
        opened(max_batch_tokens=None) as whole,
        opened() as engine,
    ):
        return prove(
            alone=reference.one_by_one(),
            reference=reference,
            whole=whole,
            engine=engine,
            grid=grid_rows(encoder, examples),
            dev=dev,
            truth=truth(examples, manifest.task, manifest.data.splits["dev"].path),
            task=manifest.task,
            tolerance=TOLERANCES[Precision.FP32],
            progress=progress,
        )


def _record(run: Path, graph: Path, verdict: Verdict) -> EngineRecord:
    digest = file_digest(graph)
    final = graph.with_name(f"model-{digest[:12]}.onnx")
    file = FileRecord(
        path=final.relative_to(run).as_posix(), sha256=digest, size=graph.stat().st_size
    )
    record = EngineRecord(
        name=NAME,
        format=EngineFormat.ONNX,
        precision=Precision.FP32,
        layout=Layout.PADDED,
        files=(file,),
        opset=OPSET,
        built_with={
            "exporter": EXPORTER,
            **{package: version(package) for package in ("torch", "transformers", "onnx")},
        },
        parity=verdict.parity,
    )
    graph.replace(final)
    manifest = read_manifest(run)
    others = tuple(engine for engine in manifest.engines if engine.name != NAME)
    write_manifest(run, manifest.model_copy(update={"engines": (*others, record)}))
    return record


def _sweep(run: Path, manifest: Manifest, progress: Progress) -> None:
    """Delete what lies under engines/ and no record names: an interrupted export left it."""
    kept = {run / file.path for engine in manifest.engines for file in engine.files}
    below = sorted((run / ENGINES).rglob("*"), reverse=True)  # what is in a folder before it
    for path in (*below, run / ENGINES):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in kept:
            progress.note(f"{path} is left from an unfinished export: removed")
            path.unlink()


def _refusal(verdict: Verdict) -> CheckFailedError:
    parity = verdict.parity
    message = (
        f"{NAME} does not answer as the checkpoint does: logits up to {parity.max_abs:.3g} apart "
        f"(tolerance {parity.tolerance:g}), {parity.flips} of {parity.rows} answers changed, "
        f"{parity.metric} {parity.score_engine:.4f} instead of {parity.score_reference:.4f}"
    )
    hint = "nothing was recorded; the versions that are known to work are in CHANGELOG.md"
    return CheckFailedError(message, hint, _table(verdict.worst))


def _table(worst: Sequence[Difference]) -> str:
    lines = (
        f"{one.name:<20} {one.tokens:>6} {one.batch:>5} {one.max_abs:>9.2e}  "
        f"{one.expected} -> {one.found}"
        for one in worst
    )
    head = f"{'input':<20} {'tokens':>6} {'batch':>5} {'max diff':>9}  checkpoint -> engine"
    return "\n".join((head, *lines))
