"""Results as tables on a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from pipework import console
from pipework.run_folder.engine_record import EngineRecord, Layer, Parity
from pipework.run_folder.manifest import Manifest, Metrics
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import Evaluation
from pipework.train.data_report.data_report import DataReport, SplitReport, Values


def scores_in_words(scores: Mapping[Metric, float]) -> str:
    """Return scores as a line: `accuracy 0.8872, macro-F1 0.8870`."""
    return ", ".join(
        f"{metric.replace('_', '-').replace('f1', 'F1')} {score:.4f}"
        for metric, score in scores.items()
    )


def show_trained(runs: Mapping[Path, Manifest]) -> None:
    """Print what a training gave: the scores of each run on dev, and of several their mean."""
    for run, manifest in runs.items():
        console.say(f"{run}: dev {_scored(manifest.data.metrics['dev'])}")
    first, *others = runs.values()
    for metric in first.data.metrics["dev"].scores if others else ():
        found = [manifest.data.metrics["dev"].scores[metric] for manifest in runs.values()]
        spread = f"standard deviation {stdev(found):.4f} over {len(found)} seeds"
        console.say(f"mean dev {scores_in_words({metric: mean(found)})}, {spread}")
    run = next(iter(runs))
    if first.task.kind is TaskKind.PRETRAIN:
        console.say(f"next: pipe train CONFIG --set model.name={run}")
    else:
        console.say(f"next: pipe export {run} --to onnx")


def _scored(metrics: Metrics) -> str:
    """Return scores, and behind them losses where there are any."""
    lost = (f"{name.replace('_', ' ')} {loss:.3f}" for name, loss in metrics.losses.items())
    return ", ".join((scores_in_words(metrics.scores), *lost))


def show_exported(run: Path, records: Sequence[EngineRecord]) -> None:
    """Print what an export gave: each engine's proof."""
    for record in records:
        parity = record.parity
        if parity is None:
            console.say(_built(record))
            continue
        tolerance = parity.tolerance.max_abs * parity.unit
        console.say(
            f"proven: {record.name}, logits at most {parity.max_abs:.1e} from the checkpoint's "
            f"(tolerance {tolerance:.2g}) over {parity.rows:,} rows in "
            f"{len(parity.shapes)} shapes, {parity.flips} answers changed, {_scores(parity)}"
        )
    where = "" if any(record.proven for record in records) else ", on a machine with the GPU"
    console.say(f"next{where}: pipe serve {run}")


def _scores(parity: Parity) -> str:
    if parity.scores is None:
        return "no labelled rows to score"
    scores = parity.scores
    return f"{parity.metric} {scores.engine:.4f} (checkpoint {scores.reference:.4f})"


def _built(record: EngineRecord) -> str:
    target = f" for {record.tensorrt.target}" if record.tensorrt is not None else ""
    return (
        f"built, not run: {record.name}{target}; "
        "the server will prove it on a machine with the GPU before it answers with it"
    )


def show_evaluation(evaluation: Evaluation) -> None:
    """Print the scores and, where the task has them, the classes and the confusion matrix."""
    console.say(f"rows {evaluation.rows:,}  {scores_in_words(evaluation.scores)}")
    rows = [
        (one.label, f"{one.precision:.3f}", f"{one.recall:.3f}", f"{one.f1:.3f}", one.support)
        for one in evaluation.classes
    ]
    if rows:
        console.table("", ("class", "precision", "recall", "F1", "rows"), rows)
    if evaluation.confusion:
        labels = [one.label for one in evaluation.classes]
        confusion = [
            (label, *counts) for label, counts in zip(labels, evaluation.confusion, strict=True)
        ]
        console.table("\nconfusion: true class down, predicted across", ("", *labels), confusion)


def show_report(report: DataReport) -> None:
    """Print what the data look like, and the findings."""
    names = list(report.splits)
    splits = list(report.splits.values())
    rows = [
        ("rows", *(f"{split.rows:,}" for split in splits)),
        ("smallest, median, largest value", *(_values(split.values) for split in splits)),
        ("characters: median, 95 %, longest", *(_triple(split.characters) for split in splits)),
        ("rows tokenized", *(f"{split.tokenized:,}" for split in splits)),
        ("tokens: median, 95 %, longest", *(_triple(split.tokens) for split in splits)),
        ("cut at max_length, or just fitting", *(_count(split.truncated) for split in splits)),
        ("unknown tokens", *(_rate(split.unknown_rate) for split in splits)),
        ("empty texts", *(f"{split.empty:,}" for split in splits)),
        ("rows that repeat a text", *(f"{split.duplicates:,}" for split in splits)),
        ("texts with conflicting labels", *(f"{split.conflicting:,}" for split in splits)),
    ]
    console.table("", ("", *names), rows)
    labels = _labels(report.splits)
    if labels:
        console.table("\nrows by label", ("", *names), labels)
    if report.shared:
        shared = [(f"{one.later} in {one.earlier}", f"{one.rows:,}") for one in report.shared]
        console.table("\nrows whose text stands in an earlier file", ("", "rows"), shared)
    console.say("")
    for finding in report.findings:
        console.say(f"finding: {finding}")
    if not report.findings:
        console.say("no findings")


def show_manifest(manifest: Manifest) -> None:
    """Print what a run folder holds."""
    for name, value in _facts(manifest):
        console.say(f"{name:<7}{value}")
    metrics = [(name, f"{one.rows:,}", _scored(one)) for name, one in manifest.data.metrics.items()]
    console.table("\nscores of the checkpoint", ("split", "rows", "scores"), metrics)
    beside = manifest.data.baseline
    if beside is not None:
        metric = scores_in_words({manifest.task.metric: beside.scores[manifest.task.metric]})
        console.say(
            f"beside it on dev, {beside.name}: {metric}; "
            f"the checkpoint is {beside.low:+.4f} to {beside.high:+.4f} better"
        )
    columns = ("engine", "MB", "apart", "same", "score", "texts/s", "p50 ms", "")
    title = "\nengines: largest difference of a logit, same answers, change of the score, speed"
    console.table(title, columns, [_engine(engine) for engine in manifest.engines])
    for engine in manifest.engines:
        if engine.kept:
            console.say(f"{engine.name} keeps {_kept(engine.kept)}")
    for finding in manifest.data.findings:
        console.say(f"finding: {finding}")


def _engine(engine: EngineRecord) -> tuple[str, ...]:
    parity, speed = engine.parity, engine.speed
    found = ("", "", "")
    if parity is not None:
        change = "no score" if parity.scores is None else f"{parity.scores.change:+.4f}"
        found = (f"{parity.max_abs:.1e}", f"{parity.argmax_agreement:.2%}", change)
    return (
        engine.name,
        f"{sum(file.size for file in engine.files) / 1e6:.1f}",
        *found,
        "" if speed is None else f"{speed.texts_per_s:,.0f}",
        "" if speed is None else f"{speed.p50_ms:.1f}",
        "proven" if engine.proven else "built, not run",
    )


def _kept(layers: Sequence[Layer]) -> str:
    """Return layers left in a higher precision, each with what the score gained, if anything."""
    gains = [f" ({one.gain:+.4f})" if one.gain else "" for one in layers]
    named = (f"{one.name} in {one.precision}" for one in layers)
    return ", ".join(name + gain for name, gain in zip(named, gains, strict=True))


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    identity, model = manifest.identity, manifest.model
    base = f" from {model.base}" if model.base else ", from scratch"
    return [
        ("run", identity.name),
        ("made", f"{identity.created_at:%Y-%m-%d %H:%M} UTC by pipework {identity.pipework}"),
        ("seed", str(identity.seed)),
        ("task", ": ".join(filter(None, (manifest.task.kind, ", ".join(_answers(manifest.task)))))),
        (
            "input",
            f"{' + '.join(manifest.input.fields)}, at most {manifest.input.max_length} tokens",
        ),
        ("model", f"{model.family}, {model.head} head, {model.parameters / 1e6:.1f} M{base}"),
        ("data", ", ".join(f"{n} {s.rows:,} rows" for n, s in manifest.data.splits.items())),
    ]


def _answers(task: Task) -> Sequence[str]:
    """Return the labels, each with its threshold where it has one."""
    if not task.thresholds:
        return task.labels
    pairs = zip(task.labels, task.thresholds, strict=True)
    return [f"{label} (from {threshold:.2f})" for label, threshold in pairs]


def _labels(splits: Mapping[str, SplitReport]) -> Sequence[tuple[str, ...]]:
    labels = sorted({label for split in splits.values() for label in split.labels})
    return [
        (label, *(f"{split.labels.get(label, 0):,}" for split in splits.values()))
        for label in labels
    ]


def _triple(values: tuple[int, int, int] | None) -> str:
    return "" if values is None else ", ".join(f"{value:,}" for value in values)


def _values(values: Values | None) -> str:
    found = () if values is None else (values.smallest, values.median, values.largest)
    return ", ".join(f"{value:g}" for value in found)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
