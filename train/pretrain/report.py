"""The report of a pretraining run as one HTML page that needs nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipework.html import page as frame
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import Manifest
from pipework.run_folder.task import Loss, Metric
from pipework.scoring.evaluation import Evaluation
from pipework.train.data_report.data_report import DataReport
from pipework.train.data_report.html import data_section
from pipework.train.pretrain.corpus import Corpus
from pipework.train.report.page import FILE_NAME, of_train, settings, top
from pipework.train.report.plots import Curve, read_curves

SAID = {
    Metric.MASKED_ACCURACY: "of the hidden tokens of dev are told",
    Metric.ORDER_ACCURACY: "of the orders of two segments of dev are told",
}
LOST = {
    Loss.MASKED: "nats lost on a hidden token of dev",
    Loss.ORDER: "nats lost on an order; one that is guessed loses 0.693",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainPage:
    """What the page shows, beside the log of the run.

    Attributes:
        manifest: of the finished run.
        config: the text of its config.toml.
        report: what its data files look like.
        evaluation: the kept checkpoint on dev.
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
    path = run / FILE_NAME
    write_atomically(path, html(page, read_curves(run)).encode())
    return path


def html(page: PretrainPage, curves: Mapping[str, Curve]) -> str:
    """Return the page.

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
    return frame.whole(f"{page.manifest.identity.name}: pretraining run", parts)


def _tiles(page: PretrainPage, curves: Mapping[str, Curve]) -> str:
    found = [(f"{score:.1%}", "", SAID[one]) for one, score in page.evaluation.scores.items()]
    found += [(f"{loss:.3f}", "", LOST[one]) for one, loss in page.evaluation.losses.items()]
    rows, tokens = len(page.corpus), int(page.corpus.lengths.sum())
    full = tokens / (rows * int(page.corpus.lengths.max()))
    found.append((f"{tokens:,}", "", f"tokens of train, in {rows:,} rows that are {full:.1%} full"))
    if (speed := curves.get("train/examples_per_s")) is not None:
        rate = sum(speed.values_S) / len(speed.values_S) * tokens / rows
        found.append((f"{rate:,.0f}", "tokens/s", "learned from, at the mean"))
    return frame.tiles(found)


def _curves(curves: Mapping[str, Curve]) -> str:
    from pipework.train.report.plots import over_steps  # noqa: PLC0415  (needs matplotlib)

    drawn = of_train(curves)
    for title, names in (("Accuracy on dev", Metric), ("Loss on dev", Loss)):
        dev = {
            name.replace("_", " "): curves[f"dev/{name}"]
            for name in names
            if f"dev/{name}" in curves
        }
        if dev:
            caption = "The same tokens are hidden each time."
            drawn.append((title, caption, over_steps(dev, f"{title} over the steps")))
    return frame.section("How it learned", frame.plots(drawn))
