"""What a page says of a result's origin: workload, machine, software and command."""

from collections.abc import Mapping
from html import escape

from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.results_schema.workload import WorkloadSummary
from pipework.html import page as frame


def facts(workload: WorkloadSummary, made: Provenance, command: tuple[str, ...]) -> str:
    """Return the lists and the command as HTML."""
    return origin({"Workload": _sent(workload)}, made, command)


def origin(
    given: Mapping[str, Mapping[str, str]], made: Provenance, command: tuple[str, ...]
) -> str:
    """Return lists of what was given, of machine and software, and the command as HTML."""
    lists = (
        *(frame.facts(title, found) for title, found in given.items()),
        frame.facts("Machine that measured", _machine(made)),
        frame.facts("Software there", _software(made)),
    )
    line = f"<p>Measured by <code>{escape(' '.join(command))}</code></p>"
    return line + f'<div class="facts">{"".join(lists)}</div>'


def _sent(workload: WorkloadSummary) -> dict[str, str]:
    kind = "pairs of texts" if workload.pair else "texts"
    lengths = f"mean {workload.mean_length:,.0f}, p95 {workload.p95_length:,.0f} characters"
    count = workload.texts_per_request
    sent = {
        "source": workload.source,
        "inputs": f"{workload.texts:,} {kind}",
        "a request": f"{count} of them" if count else "as recorded",
        "length": lengths,
        "seed": f"{workload.seed}",
    }
    if workload.mean_tokens is not None:
        sent["tokens"] = f"mean {workload.mean_tokens:,.1f}"
    return sent


def _machine(made: Provenance) -> dict[str, str]:
    machine = made.machine
    return {
        "processor": machine.cpu,
        "cores": f"{machine.cores} usable",
        "memory": f"{machine.memory_gib:g} GiB",
        "system": machine.system,
        "Python": machine.python,
    }


def _software(made: Provenance) -> dict[str, str]:
    commit = made.git_commit or "not a checkout"
    return {"pipework": made.pipework, "commit": commit} | made.versions
