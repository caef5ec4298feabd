"""Report which steps of `make gpu` passed, and the results that they stored.

`python -m pipework.benchmarks.studies.gpu_report --work WORK --out FILE STEP...` prints the report
and writes it to FILE. The exit code is 3 if a step failed or did not run.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.benchmarks.studies.run_classification import TrainerResult
from pipework.benchmarks.studies.script import report_errors, study_parser

FAILED, SKIPPED = "failed", "skipped"


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the report; return the exit code."""
    parser = study_parser("gpu_report", __doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of `make gpu`")
    parser.add_argument("--left-out", action="append", default=[], help="step without a run")
    parser.add_argument("steps", nargs="*")
    options = parser.parse_args(arguments)
    states = {step: state(options.work, step) for step in options.steps}
    states |= dict.fromkeys(options.left_out, f"{SKIPPED}: a step with the same command ran")
    results = sorted((options.work / "results").glob("*.json"))
    text = "\n".join([*(f"{step}: {states[step]}" for step in states), "", *figures(results)])
    options.out.write_text(f"{text}\n", encoding="utf-8")
    sys.stdout.write(f"{text}\n")
    return 3 if any(found.startswith(FAILED) for found in states.values()) else 0


def state(work: Path, step: str) -> str:
    """Return whether a step passed, with its duration, or why not."""
    done = work / "done" / step
    if done.is_file():
        return f"passed in {done.read_text(encoding='utf-8').strip()} s"
    for kind in (SKIPPED, FAILED):
        reason = work / kind / step
        if reason.is_file():
            return f"{kind}: {reason.read_text(encoding='utf-8').strip()}"
    return f"{FAILED}: not run, because a step that it needs has failed"


def figures(results: Sequence[Path]) -> Iterator[str]:
    """Yield a line for each measurement of the stored results."""
    for path in results:
        content = path.read_bytes()
        if path.name.startswith("trainer-"):
            result = TrainerResult.model_validate_json(content)
            for name, speed in (("pipework", result.pipework), ("Trainer", result.trainer)):
                rate = speed.examples_per_s
                score = speed.dev_accuracy
                yield f"{path.stem}: {name}: {rate:,.0f} examples/s, dev accuracy {score:.2f} %"
        elif path.name.startswith(("speed-", "torch-", "served-")):
            yield from _speeds(path.stem, BenchResult.model_validate_json(content))


def _speeds(name: str, result: BenchResult) -> Iterator[str]:
    for level in tables.engines(result):
        yield f"{name}: {level.stage}: {level.texts_per_s:,.0f} texts/s"
    for served in result.levels:
        yield f"{name}: {served.concurrency} clients: {served.texts_per_s:,.0f} texts/s"


if __name__ == "__main__":
    sys.exit(main())
