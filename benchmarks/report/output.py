"""Output of any result: text for the terminal, the HTML page, and the check of its verdict."""

from pathlib import Path

from pipework.benchmarks.compare.compare import check_regressions
from pipework.benchmarks.load.slo import check_slo
from pipework.benchmarks.report import bench_page, comparison_page
from pipework.benchmarks.results_schema.results import BenchResult, Result
from pipework.run_folder.files import check_writable, write_atomically


def print_result(result: Result) -> None:
    """Print the tables and notes of a result."""
    if isinstance(result, BenchResult):
        bench_page.print_result(result)
    else:
        comparison_page.print_result(result)


def page(result: Result) -> str:
    """Return the HTML page of a result.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if isinstance(result, BenchResult):
        return bench_page.page(result)
    return comparison_page.page(result)


def write_page(path: Path, result: Result) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def check(result: Result) -> None:
    """Check that the objective was met and that nothing became worse.

    Raises:
        CheckFailedError: the objective was missed, or a quantity became worse.
    """
    if not isinstance(result, BenchResult):
        check_regressions(result)
    elif result.slo is not None:
        check_slo(result.slo)
