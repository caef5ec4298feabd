"""Helm in a process of its own.

Its library is written in Go, whose runtime replaces signal handlers of the process that loads it,
also that of SIGPIPE. In a process of the tests, a write to a closed connection then ended with
SIGSEGV, in one of a few runs of all tests.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

_PROCESS = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


class RefusedByHelmError(Exception):
    """Helm has refused a chart or its values."""


def render(chart: Path, values: dict[str, Any], name: str) -> dict[str, str]:
    """Return the manifests of a release in the namespace `text`, by path in the chart.

    Raises:
        RefusedByHelmError: the chart or its schema refuses the values.
    """
    files: dict[str, str] = _PROCESS.submit(_render, str(chart), values, name).result()
    return files


def call(function: str, *arguments: Any) -> Any:
    """Call a function of the package helm_python.

    Raises:
        RefusedByHelmError: it has raised a HelmError.
    """
    return _PROCESS.submit(_call, function, *arguments).result()


def _render(chart: str, values: dict[str, Any], name: str) -> dict[str, str]:
    import helm_python  # noqa: PLC0415  (in the child process only)

    try:
        with helm_python.Chart.load(chart) as loaded:
            files: dict[str, str] = loaded.render(values, name=name, namespace="text")
    except helm_python.HelmError as error:
        raise RefusedByHelmError(str(error)) from None
    return files


def _call(function: str, *arguments: Any) -> Any:
    import helm_python  # noqa: PLC0415  (in the child process only)

    try:
        return getattr(helm_python, function)(*arguments)
    except helm_python.HelmError as error:
        raise RefusedByHelmError(str(error)) from None
