"""The report of a pretraining run as one self-contained HTML page."""

from pathlib import Path
from statistics import fmean

from pipework.html import page as frame
from pipework.run_folder.manifest import Manifest
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Loss, Metric, Score
from pipework.train.data_report.records import DataReport
from pipework.train.data_report.tables import data_section
from pipework.train.pretrain.corpus import Corpus
from pipework.train.report.curves import Curves, read_curves
from pipework.train.report.page import curve_plots, settings, top
from pipework.train.run_folder import CONFIG

SCORE_CAPTIONS: dict[Score, str] = {
    Metric.MASKED_ACCURACY: "of the masked tokens of dev are predicted correctly",
    Metric.ORDER_ACCURACY: "of the segment orders of dev are predicted correctly",
}
LOSS_CAPTIONS = {
    Loss.MASKED: "cross-entropy (nats) per masked token of dev",
    Loss.ORDER: "cross-entropy (nats) per segment pair of dev; random guessing has 0.693",
}


def html(
    run: Path, manifest: Manifest, report: DataReport, evaluation: Evaluation, corpus: Corpus
) -> str:
    """Return the page of a finished run as HTML.

    Args:
        run: the run folder, with its config and log.
        manifest: its manifest.
        report: the statistics of its data files.
        evaluation: the scores of the best checkpoint on dev.
        corpus: the rows of train.
    """
    curves = read_curves(run)
    plots = curve_plots(curves, "The same tokens are masked in every evaluation.", Metric)
    parts = (
        top(manifest),
        _tiles(evaluation, corpus, curves),
        frame.section("Training curves", frame.plots(plots)),
        data_section(report),
        settings(manifest, (run / CONFIG).read_text(encoding="utf-8")),
    )
    return frame.render_page(f"{manifest.identity.name}: pretraining run", parts)


def _tiles(evaluation: Evaluation, corpus: Corpus, curves: Curves) -> str:
    tiles = [
        (f"{score:.1%}", "", SCORE_CAPTIONS[metric]) for metric, score in evaluation.scores.items()
    ]
    tiles += [(f"{loss:.3f}", "", LOSS_CAPTIONS[name]) for name, loss in evaluation.losses.items()]
    rows, tokens = len(corpus), int(corpus.lengths.sum())
    fill = tokens / (rows * int(corpus.lengths.max()))
    tiles.append((f"{tokens:,}", "", f"training tokens in {rows:,} rows, {fill:.1%} filled"))
    if (speed := curves.get("train/examples_per_s")) is not None:
        rate = fmean(value for _, value in speed) * tokens / rows
        tiles.append((f"{rate:,.0f}", "tokens/s", "mean training throughput"))
    return frame.tiles(tiles)
