"""The model card of a published run, generated from its manifest and its dev rows.

The front matter follows https://huggingface.co/docs/hub/model-cards and is written by
huggingface_hub; `model-index` has the scores with rows and 95 % intervals.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from huggingface_hub import EvalResult, ModelCardData

from pipework.data.kept_rows import kept_source
from pipework.predict.text_model import EngineModel
from pipework.progress import Progress, counted
from pipework.record import Record
from pipework.run_folder.engine_record import Parity, Speed
from pipework.run_folder.manifest import Manifest
from pipework.scoring.bootstrap import Interval, TaskOutputs, score_interval
from pipework.scoring.evaluation import label_array

USE = """\
```python
from transformers import pipeline

classify = pipeline("text-classification", model="{name}", top_k=None)
print(classify({example}, truncation=True, max_length={length}))
```
"""


class PublishedEngine(Record):
    """An engine in a published folder: its file, its name in the run, its proof and its speed."""

    file: str
    name: str
    parity: Parity
    speed: Speed | None


def model_card(
    run: Path,
    manifest: Manifest,
    engines: Sequence[PublishedEngine],
    progress: Progress,
    name: str,
) -> str:
    """Return the card as Markdown with front matter; `name` is a hub id or the name of a folder."""
    interval = _interval(run, manifest, progress)
    example = '{"text": "...", "text_pair": "..."}' if manifest.input.pair else '["..."]'
    parts = [
        f"# {manifest.identity.name}",
        _summary(manifest),
        "## Use",
        USE.format(name=name, example=example, length=manifest.input.max_length),
        "## Scores",
        _scores(manifest, interval),
        "## Engines",
        _engines(manifest, engines),
        "## Data",
        "\n".join(_data(manifest)),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(manifest, engines)),
    ]
    return f"---\n{_front_matter(manifest, engines, interval)}\n---\n\n" + "\n\n".join(parts) + "\n"


def base_model(manifest: Manifest) -> str | None:
    """Return the hub id of the model that the training started from; None for a folder."""
    base = manifest.model.base
    if base is None or PurePath(base).is_absolute() or base.startswith((".", "~")):
        return None
    return base if base.count("/") <= 1 and not Path(base).exists() else None


def _interval(run: Path, manifest: Manifest, progress: Progress) -> Interval | None:
    """Return the interval of the score on dev; None without labelled rows in the run folder."""
    if "dev" not in manifest.data.metrics or "dev" not in manifest.data.splits:
        return None
    source = kept_source(run, manifest, "dev")
    if source is None:
        return None
    rows = list(source.rows())
    from pipework.train.model.checkpoint_engine import open_reference  # noqa: PLC0415  (imports torch)

    # As the scores in the manifest, and as the programs that read a published folder.
    truncating = manifest.model_copy(update={"windows": None})
    with EngineModel.open(run, truncating, open_reference(run, manifest)) as model:
        outputs = model.infer(rows, progress).outputs
        truth = label_array(rows, manifest.task, str(source.path), model.codec.encoder)
    return score_interval(TaskOutputs(outputs=outputs, task=manifest.task.trained), truth)


def _front_matter(
    manifest: Manifest, engines: Sequence[PublishedEngine], interval: Interval | None
) -> str:
    task, results = manifest.task, []
    for split, metrics in manifest.data.metrics.items():
        for metric, score in metrics.scores.items():
            arguments = None
            if metric is task.metric and split == "dev" and interval is not None:
                arguments = {"low": round(interval.low, 6), "high": round(interval.high, 6)}
            results.append(
                EvalResult(
                    task_type="text-classification",
                    dataset_type="own",
                    dataset_name=f"{_file(manifest, split)}, {counted(metrics.rows, 'row')}",
                    dataset_split=split,
                    metric_type=metric.value,
                    metric_value=round(score, 6),
                    metric_args=arguments,
                )
            )
    card = ModelCardData(
        base_model=base_model(manifest),
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["pipework", *sorted({engine.file.partition("/")[0] for engine in engines})],
        model_name=manifest.identity.name,
        eval_results=results or None,
    )
    return str(card.to_yaml())


def _file(manifest: Manifest, split: str) -> str:
    recorded = manifest.data.splits.get(split)
    return split if recorded is None else PurePath(recorded.path).name


def _summary(manifest: Manifest) -> str:
    task, model = manifest.task, manifest.model
    base = base_model(manifest)
    origin = "" if base is None else f", fine-tuned from {base}"
    thresholds = ", ".join(
        f"`{label}` from {threshold:.3f}"
        for label, threshold in (task.label_thresholds or {}).items()
    )
    fields = " and ".join(manifest.input.fields)
    text = (
        f"{model.family}, {model.parameters:,} parameters{origin}. "
        f"Input: {fields}, at most {counted(manifest.input.max_length, 'token')}. "
        f"Output: {task.describe_output()}."
    )
    if thresholds:
        text += f"\nThresholds: {thresholds}."
    if model.calibration is not None:
        text += f"\nThe probabilities are calibrated, in the weights: {model.calibration}."
    return text


def _scores(manifest: Manifest, interval: Interval | None) -> str:
    if not manifest.data.metrics:
        return "Unknown: there were no labelled rows."
    lines = ["| split | rows | metric | score |", "|---|--:|---|--:|"]
    for split, metrics in manifest.data.metrics.items():
        for metric, score in metrics.scores.items():
            shown = f"{score:.4f}"
            if metric is manifest.task.metric and split == "dev" and interval is not None:
                shown += f" ({interval.low:.4f} to {interval.high:.4f}, 95 % interval)"
            lines.append(f"| {split} | {metrics.rows:,} | {metric} | {shown} |")
    if manifest.data.verdict is not None:
        lines += ["", manifest.data.verdict]
    return "\n".join(lines)


def _engines(manifest: Manifest, engines: Sequence[PublishedEngine]) -> str:
    if not engines:
        return "None in this folder."
    lines = [
        "Each engine was compared with the checkpoint in float32 and passed.",
        "",
        "| file | engine | rows compared | largest difference of a logit | changes | texts/s |",
        "|---|---|--:|--:|---|--:|",
    ]
    for engine in engines:
        parity, speed = engine.parity, engine.speed
        rate = "" if speed is None else f"{speed.texts_per_s:,.0f}"
        lines.append(
            f"| `{engine.file}` | {engine.name} | {parity.rows:,} | {parity.max_abs:.2g} "
            f"| {manifest.task.describe_change(parity)} | {rate} |"
        )
    return "\n".join((*lines, *_speed_notes(engines)))


def _speed_notes(engines: Sequence[PublishedEngine]) -> Iterator[str]:
    """Describe how the speeds were measured."""
    speeds = [engine.speed for engine in engines if engine.speed is not None]
    kinds = dict.fromkeys(
        f"{speed.processor} with {counted(speed.threads, 'thread')}, "
        f"{counted(speed.batch, 'text')} per batch"
        for speed in speeds
    )
    if kinds:
        yield f"\nTexts/s were measured on {'; '.join(kinds)}."
    if unsteady := [speed.variation for speed in speeds if not speed.is_steady]:
        yield (
            f"They are not reliable: they are uncertain by up to {max(unsteady):.0%}, because "
            "other programs used the machine."
        )


def _data(manifest: Manifest) -> Iterator[str]:
    for split, recorded in manifest.data.splits.items():
        use = "calibration of int8" if manifest.imported and split == "train" else split
        digest = recorded.sha256[:12]
        rows = counted(recorded.rows, "row")
        yield f"- {use}: {PurePath(recorded.path).name}, {rows} (sha256 {digest})"
    for finding in manifest.data.findings:
        yield f"- finding: {finding}"
    if not manifest.data.splits:
        yield "- unknown: the model was imported without rows"


def _limits(manifest: Manifest, engines: Sequence[PublishedEngine]) -> Iterator[str]:
    yield (
        f"The proofs hold for texts of up to {manifest.input.max_length} tokens: truncate longer "
        "texts."
    )
    if any(engine.file.startswith("openvino/") for engine in engines):
        yield (
            "OpenVINO computes in bf16 on processors that support it. The proofs of the OpenVINO "
            'files hold for `compile_model(..., config={"INFERENCE_PRECISION_HINT": "f32"})`.'
        )
    imported = manifest.imported
    if imported is not None:
        if imported.custom_code:
            files = ", ".join(
                f"`{name}` (sha256 {digest[:12]})" for name, digest in imported.custom_code.items()
            )
            yield (
                f"The source has code of its own: {files}. It was executed to read and to compare "
                "the source; this folder does not need it."
            )
        yield "The training data of the source are unknown: it was trained by another program."
        if not engines:
            yield (
                "The proven engines compute the activation of the score, which programs apply "
                "themselves to the files of this layout: `pipe publish RUN --to oci:DIR` has them."
            )
        yield (
            f"The import was compared with its source on {counted(imported.rows, 'row')}: "
            f"logits within {imported.max_abs:.1e}."
        )
    yield "The licence of weights and data is not recorded: add it before you share the model."
