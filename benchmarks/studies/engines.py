"""The engines of runs as stored results: `python -m pipework.benchmarks.studies.engines RUN NAME --out FILE`.

Measured side by side on the dev texts in their order, 8 a call, beside what an exporter and a
server that are put together by hand do: onnxruntime in fp32, each call padded to its longest text.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipework import console
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.engine_results import EngineResult, EnginesResult
from pipework.errors import ConfigError, PipeError
from pipework.export.inference import open_encoder, split_source
from pipework.export.ranking import Opener, measure
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineFormat, EngineRecord, Layout, Precision
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.serve.engines import choose_engine, open_engine, runs_here

BY_HAND = "onnxruntime fp32, padded as they come"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the proven engines of a run and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.engines", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines, onnx-fp32 among them")
    parser.add_argument("name", help="of the data, as the table shows it")
    parser.add_argument("--seconds", type=float, default=12, help="for which each is measured")
    parser.add_argument("--command", action="append", default=[], help="that repeats it")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    given = parser.parse_args(arguments)
    progress = console.progress()
    try:
        check_writable(given.out)
        result = engines(given.run, given.name, given.seconds, given.command, progress)
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    finally:
        progress.close()
    for one in result.engines:
        sys.stdout.write(f"{one.name}: {one.texts_per_s:,.0f} texts/s\n")
    return 0


def engines(
    run: Path, name: str, seconds: float, commands: Sequence[str], progress: Progress
) -> EnginesResult:
    """Return what the manifest says of each proven engine, and their speed side by side.

    Raises:
        PipeError: the run has no padded fp32 engine of onnxruntime, or its dev file is gone.
    """
    manifest = read_classifier(run)
    proven = [one for one in manifest.engines if one.proven and runs_here(one)]
    plain = choose_engine(manifest, f"{EngineFormat.ONNX}-{Precision.FP32}")
    dev = list(split_source(run, manifest, "dev").rows())
    rows = open_encoder(run, manifest).encode(dev)
    openers: dict[str, Opener] = {one.name: _opener(run, one, manifest) for one in proven}
    openers[BY_HAND] = _opener(run, plain, manifest, whole=True)
    speeds = measure(openers, rows, seconds, progress)
    by_hand = speeds[BY_HAND]
    found = [_result(one, speeds[one.name].texts_per_s, speeds[one.name].p50_ms) for one in proven]
    found.sort(key=lambda one: -one.texts_per_s)
    return EnginesResult(
        dataset=name,
        metric=manifest.task.metric,
        rows=len(rows),
        batch=by_hand.batch,
        threads=by_hand.threads,
        processor=by_hand.processor,
        by_hand_texts_per_s=by_hand.texts_per_s,
        by_hand_p50_ms=by_hand.p50_ms,
        engines=tuple(found),
        commands=tuple(commands),
        provenance=provenance(),
    )


def _opener(run: Path, record: EngineRecord, manifest: Manifest, *, whole: bool = False) -> Opener:
    path = run / record.files[0].path
    return partial(open_engine, path, record, manifest, whole=whole, tensorrt=record.tensorrt)


def _result(record: EngineRecord, texts_per_s: float, p50_ms: float) -> EngineResult:
    parity = record.parity
    if parity is None or parity.scores is None:
        message = f"engine {record.name} was not scored on labelled dev rows"
        raise ConfigError(message, "give the run a dev file, and export again")
    return EngineResult(
        name=record.name,
        mib=sum(file.size for file in record.files) / 2**20,
        max_abs=parity.max_abs,
        spread=parity.spread,
        agreement=parity.argmax_agreement,
        change=parity.scores.change,
        low=parity.scores.low,
        high=parity.scores.high,
        kept=len(record.kept),
        packed=record.layout is Layout.PACKED,
        texts_per_s=texts_per_s,
        p50_ms=p50_ms,
    )


if __name__ == "__main__":
    sys.exit(main())
