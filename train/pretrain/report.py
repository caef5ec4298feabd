"""The report of a pretraining run as one self-contained HTML page."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipework.html import page as frame
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import Manifest
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Loss, Metric
from pipework.train.data_report.data_report import DataReport
from pipework.train.data_report.html import data_section
from pipework.train.pretrain.corpus import Corpus
from pipework.train.report.curves import PAGE, Curve, read_curves
from pipework.train.report.page import settings, top, training_curves

SCORE_CAPTIONS = {
    Metric.MASKED_ACCURACY: "of the masked tokens of dev are predicted correctly",
    Metric.ORDER_ACCURACY: "of the segment orders of dev are predicted correctly",
}
LOSS_CAPTIONS = {
    Loss.MASKED: "cross-entropy (nats) per masked token of dev",
    Loss.ORDER: "cross-entropy (nats) per segment pair of dev; random guessing has 0.693",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainPage:
    """The data shown on the page, in addition to the log of the run.

    Attributes:
        manifest: of the finished run.
        config: the text of its config.toml.
        report: the statistics of its data files.
        evaluation: scores of the best checkpoint on dev.
        corpus: the rows of train.
    """

    manifest: Manifest
    config: str
    report: DataReport
    evaluation: Evaluation
    corpus: Corpus


def write_page(run: Path, page: PretrainPage) -> Path:
    """Write RUN/report.html atomically, and return its path.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    path = run / PAGE
    write_atomically(path, html(page, read_curves(run)).encode())
    return path


def html(page: PretrainPage, curves: Mapping[str, Curve]) -> str:
    """Return the page as HTML.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    parts = (
        top(page.manifest),
        _tiles(page, curves),
        _curves(curves),
        data_section(page.report),
        settings(page.manifest, page.config),
    )
    return frame.render_page(f"{page.manifest.identity.name}: pretraining run", parts)


def _tiles(page: PretrainPage, curves: Mapping[str, Curve]) -> str:
    tiles = [
        (f"{score:.1%}", "", SCORE_CAPTIONS[metric])
        for metric, score in page.evaluation.scores.items()
    ]
    tiles += [
        (f"{loss:.3f}", "", LOSS_CAPTIONS[name]) for name, loss in page.evaluation.losses.items()
    ]
    rows, tokens = len(page.corpus), int(page.corpus.lengths.sum())
    fill = tokens / (rows * int(page.corpus.lengths.max()))
    tiles.append((f"{tokens:,}", "", f"training tokens in {rows:,} rows, {fill:.1%} filled"))
    if (speed := curves.get("train/examples_per_s")) is not None:
        rate = sum(speed.values_S) / len(speed.values_S) * tokens / rows
        tiles.append((f"{rate:,.0f}", "tokens/s", "mean training throughput"))
    return frame.tiles(tiles)


def _curves(curves: Mapping[str, Curve]) -> str:
    from pipework.train.report.plots import over_steps  # noqa: PLC0415  (needs matplotlib)

    plots = training_curves(curves)
    for title, names in (("Accuracy on dev", Metric), ("Loss on dev", Loss)):
        dev = {
            name.replace("_", " "): curves[f"dev/{name}"]
            for name in names
            if f"dev/{name}" in curves
        }
        if dev:
            caption = "The same tokens are masked in every evaluation."
            plots.append((title, caption, over_steps(dev, f"{title} over the steps")))
    return frame.section("Training curves", frame.plots(plots))
