"""Entry point of measurements: takes a URL or a run folder, returns a result; writes no files."""

from dataclasses import replace
from pathlib import Path

from pipework.benchmarks.load.offline import TOKENIZING, measure
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel
from pipework.benchmarks.run_server import bench_server
from pipework.benchmarks.targets import is_url
from pipework.data.examples import validate_example
from pipework.errors import RunFolderError
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.serve.engines import open_proven, runs_here
from pipework.text.encoding import TextEncoder

OFFLINE_BATCHES = (1, 8, 32)


def bench(target: str, plan: BenchPlan, progress: Progress) -> BenchResult:
    """Measure the server at a URL, or the proven engines of a run folder in this process.

    Raises:
        PipeError: the server or the run folder cannot be measured.
    """
    if is_url(target):
        return bench_server(target, plan, progress)
    return _bench_run(Path(target), plan, progress)


def _bench_run(run: Path, plan: BenchPlan, progress: Progress) -> BenchResult:
    manifest = read_classifier(run)
    if not manifest.engines:
        message = f"{run} has no proven engine"
        raise RunFolderError(message, f"export one: pipe export {run} --to onnx")
    if manifest.windows is not None:
        progress.note(f"{run} reads windows: engines are measured with truncated texts")
    workload = plan.workload(max(_batches(plan)), fields=manifest.input.fields)
    examples = tuple(
        validate_example(example, manifest.input, f"text {number}")
        for number, example in enumerate(workload.examples, start=1)
    )
    encoder = TextEncoder.open(
        run / manifest.input.tokenizer.path,
        max_length=manifest.input.max_length,
        type_ids=manifest.input.type_ids,
    )
    workload = replace(workload, examples=examples).with_token_counts(encoder)
    name = run.resolve().name  # results contain no local paths
    return BenchResult(
        command=plan.command,
        target=name,
        model=manifest.identity.name,
        provenance=provenance(),
        workload=workload.summary(),
        offline=_offline(run, manifest, encoder, workload, plan, progress),
    )


def _batches(plan: BenchPlan) -> tuple[int, ...]:
    return OFFLINE_BATCHES if plan.batch is None else (plan.batch,)


def _offline(
    run: Path,
    manifest: Manifest,
    encoder: TextEncoder,
    workload: Workload,
    plan: BenchPlan,
    progress: Progress,
) -> tuple[OfflineLevel, ...]:
    levels = []
    batches = _batches(plan)
    available = [record for record in manifest.engines if runs_here(record)]
    with progress.stage("offline", len(batches) * (1 + len(available)), "levels"):
        examples = workload.examples
        for batch in batches:
            levels.append(measure(encoder.encode, examples, TOKENIZING, batch, plan.duration_s))
            progress.advance(1)
        encodings = encoder.encode(examples)
        for record in available:
            with open_proven(run, manifest, record.name) as engine:
                for batch in batches:
                    level = measure(engine.infer, encodings, record.name, batch, plan.duration_s)
                    levels.append(level)
                    progress.advance(1)
    return tuple(
        level.model_copy(update={"tokens_per_s": workload.tokens(level.texts_per_s)})
        for level in levels
    )
