"""The content of a report, of which the terminal shows the tables and notes."""

from collections.abc import Callable
from dataclasses import dataclass

from pipework.benchmarks.report.tables import TextTable
from pipework.benchmarks.results_schema.comparison import ComparisonResult
from pipework.benchmarks.results_schema.results import BenchResult

Result = BenchResult | ComparisonResult
Plot = tuple[str, str, str]  # title, caption, SVG


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultNote:
    """Note on a result.

    `bad` marks a missed objective or unreliable figures, `good` a met objective.
    """

    title: str
    text: str
    bad: bool
    good: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Content of a report.

    Attributes:
        heading: name of the model, or of the compared servers.
        line: the workload and the method.
        caption: explains the figures of the tables.
        plots: draws the plots; needs matplotlib.
    """

    heading: str
    line: str
    notes: tuple[ResultNote, ...]
    tables: tuple[TextTable, ...]
    caption: str
    plots: Callable[[], list[Plot]]
