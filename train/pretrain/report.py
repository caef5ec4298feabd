"""The report of a pretraining run as one self-contained HTML page."""

from dataclasses import dataclass
from statistics import fmean

from pipework.html import page as frame
from pipework.run_folder.manifest import Manifest
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Loss, Metric
from pipework.train.data_report.data_report import DataReport
from pipework.train.data_report.tables import data_section
from pipework.train.pretrain.corpus import Corpus
from pipework.train.report.curves import Curves
from pipework.train.report.page import curve_plots, settings, top

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


def html(page: PretrainPage, curves: Curves) -> str:
    """Return the page as HTML."""
    plots = curve_plots(curves, "The same tokens are masked in every evaluation.", Metric)
    parts = (
        top(page.manifest),
        _tiles(page, curves),
        frame.section("Training curves", frame.plots(plots)),
        data_section(page.report),
        settings(page.manifest, page.config),
    )
    return frame.render_page(f"{page.manifest.identity.name}: pretraining run", parts)


def _tiles(page: PretrainPage, curves: Curves) -> str:
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
        rate = fmean(value for _, value in speed) * tokens / rows
        tiles.append((f"{rate:,.0f}", "tokens/s", "mean training throughput"))
    return frame.tiles(tiles)
