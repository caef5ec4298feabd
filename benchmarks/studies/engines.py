"""Measure a run's engines: `python -m pipework.benchmarks.studies.engines`.

The engines take turns on the dev texts in file order, 8 texts per call. The baseline is what a
simple exporter and server do: onnxruntime in fp32, each call padded to its longest text.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.records.engine_results import EngineResult, EnginesResult
from pipework.benchmarks.studies.script import report_errors, stored, study_parser
from pipework.data.splits import split_source
from pipework.errors import ConfigError
from pipework.export.speed import ServedEngine, measure
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord, Layout, Precision, Speed
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.serve.engines import choose_engine, open_engine, runs_here
from pipework.text.encoding import open_encoder

BASELINE = "onnxruntime fp32, padded in arrival order"


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the proven engines of a run and store the result; return the exit code."""
    parser = study_parser("engines", __doc__, run=True, commands=True)
    parser.add_argument("--seconds", type=float, default=12, help="seconds per engine")
    options = parser.parse_args(arguments)

    def measured(progress: Progress) -> EnginesResult:
        return engines(options.run, options.name, options.seconds, options.command, progress)

    result = stored(options.out, measured)
    for engine in result.engines:
        sys.stdout.write(f"{engine.name}: {engine.texts_per_s:,.0f} texts/s\n")
    return 0


def engines(
    run: Path, name: str, seconds: float, commands: Sequence[str], progress: Progress
) -> EnginesResult:
    """Return the parity figures of each proven engine from the manifest, and its measured speed.

    Raises:
        PipeError: the run has no padded onnxruntime fp32 engine, or its dev file is missing.
    """
    manifest = read_classifier(run)
    proven = [record for record in manifest.engines if record.proven and runs_here(record)]
    baseline = choose_engine(manifest, f"onnx-{Precision.FP32}")
    dev = list(split_source(run, manifest, "dev").rows())
    rows = open_encoder(run, manifest).encode(dev)
    measured = {record.name: _opener(run, record, manifest) for record in proven}
    measured[BASELINE] = _opener(run, baseline, manifest, whole=True)
    speeds = measure(measured, rows, seconds, progress)
    baseline_speed = speeds[BASELINE]
    default = choose_engine(manifest).name
    results = [_result(record, speeds[record.name], default) for record in proven]
    results.sort(key=lambda result: -result.texts_per_s)
    return EnginesResult(
        dataset=name,
        metric=manifest.task.metric,
        rows=len(rows),
        batch=baseline_speed.batch,
        threads=baseline_speed.threads,
        processor=baseline_speed.processor,
        by_hand_texts_per_s=baseline_speed.texts_per_s,
        by_hand_p50_ms=baseline_speed.p50_ms,
        engines=tuple(results),
        commands=tuple(commands),
        provenance=provenance(),
    )


def _opener(
    run: Path, record: EngineRecord, manifest: Manifest, *, whole: bool = False
) -> ServedEngine:
    path = run / record.files[0].path
    opener = partial(open_engine, path, record, manifest, whole=whole, built=record.built)
    return ServedEngine(opener=opener)


def _result(record: EngineRecord, speed: Speed, default: str) -> EngineResult:
    parity = record.parity
    if parity is None or parity.scores is None:
        message = f"engine {record.name} has no score on labelled dev rows"
        raise ConfigError(message, "train with a dev file and export again")
    return EngineResult(
        name=record.name,
        mib=sum(file.size for file in record.files) / 2**20,
        max_abs=parity.max_abs,
        spread=parity.spread,
        agreement=parity.argmax_agreement,
        change=parity.scores.change,
        low=parity.scores.low,
        high=parity.scores.high,
        kept=len(record.built.kept),
        packed=record.layout is Layout.PACKED,
        texts_per_s=speed.texts_per_s,
        p50_ms=speed.p50_ms,
        default=record.name == default,
    )


if __name__ == "__main__":
    sys.exit(main())
