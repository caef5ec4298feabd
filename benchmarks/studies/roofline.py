"""Measure rooflines: `python -m pipework.benchmarks.studies.roofline`.

A roofline (Williams et al. 2009, https://doi.org/10.1145/1498765.1498785) is the peak compute rate
of the engine's runtime and precision, limited by the memory bandwidth. The study also measures a
graph of only the encoder's matrix products in calls of the engine's shapes. Engine and graph take
turns on the same texts, one batch of the server's size per call.
"""

import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from pydantic import ValidationError

from pipework import console
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.records.engine_results import Roof, RoofedEngine, RooflineResult
from pipework.benchmarks.studies.records.grid_results import column_of
from pipework.benchmarks.studies.roofs import (
    EncoderShape,
    MatmulGraph,
    bandwidth_gb_s,
    roof_gflops,
    write_graph,
)
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.serve.config import BATCH_TOKENS
from pipework.serve.engines import open_engine, runs_here
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import InputFeed
from pipework.text.encoding import Encoding, open_encoder

ROUNDS = 5
BATCHES = 12
GIGA = 1e9


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the proven engines of a run and store the result; return the exit code."""
    parser = study_parser("roofline", __doc__, run=True)
    parser.add_argument("--engine", action="append", default=[], help="measure only this engine")
    parser.add_argument("--seconds", type=float, default=10, help="seconds per engine")
    options = parser.parse_args(arguments)
    words = command(parser, options)
    result = stored(options.out, lambda progress: _roofline(options, words, progress))
    for engine in result.engines:
        reached = f"{engine.share:.0%} of {engine.roof_texts_per_s:,.0f} texts/s"
        console.print_line(f"{engine.engine}: {reached}")
    return 0


def _roofline(options: Namespace, words: tuple[str, ...], progress: Progress) -> RooflineResult:
    """Measure the proven engines of a run, or the named ones, their matmul graphs and their roofs.

    Raises:
        ConfigError: the encoder has no BERT architecture, or there is no such engine.
        PipeError: the run cannot be read.
    """
    run: Path = options.run
    names: list[str] = options.engine
    manifest = read_manifest(run)
    chosen = [
        record
        for record in manifest.engines
        if record.proven and runs_here(record) and (not names or record.name in names)
    ]
    if not chosen:
        found = ", ".join(record.name for record in manifest.engines) or "none"
        wanted = ", ".join(names) or "any"
        message = f"{run}: expected a proven engine to measure ({wanted}), found {found}"
        raise ConfigError(message, f"export one: pipe export {run} --to auto")
    workload = Workload.synthetic(texts_per_request=1, seed=0, fields=manifest.input.fields)
    batches = _batches(open_encoder(run, manifest).encode(workload.examples))
    encoder = _encoder(run)
    with progress.stage("engines", len(chosen), "engines"):
        measured = []
        for record in chosen:
            measured.append(_measure_pair(run, manifest, record, encoder, batches, options.seconds))
            progress.advance(1)
    roofs = {column_of(record)[0]: record for record in chosen}
    return RooflineResult(
        model=options.name,
        texts=workload.source,
        batch_tokens=BATCH_TOKENS,
        engines=tuple(sorted(measured, key=lambda engine: -engine.texts_per_s)),
        roofs=tuple(
            _roof(label, roof_gflops(record, manifest), measured) for label, record in roofs.items()
        ),
        bandwidth_gb_s=round(bandwidth_gb_s(), 2),
        command=words,
        provenance=provenance(),
    )


def _roof(name: str, gflops: float, engines: Sequence[RoofedEngine]) -> Roof:
    matmul_rates = (engine.roof_gflops for engine in engines if engine.roof == name)
    return Roof(name=name, gflops=round(max(gflops, *matmul_rates), 1))


def _measure_pair(
    run: Path,
    manifest: Manifest,
    record: EngineRecord,
    encoder: EncoderShape,
    batches: Sequence[Sequence[Encoding]],
    seconds: float,
) -> RoofedEngine:
    with (
        tempfile.TemporaryDirectory() as folder,
        open_engine(run / record.files[0].path, record, manifest) as engine,
    ):
        graph = MatmulGraph(
            encoder=encoder,
            variant=record,
            type_ids=manifest.input.type_ids,
            first_only=engine.collate.first_only,
            classes=len(manifest.task.labels),
        )
        with open_engine(write_graph(graph, Path(folder)), record, manifest) as matmul_engine:
            engine.learn_costs(manifest.input.max_length)
            matmul_engine.collate = engine.collate
            times_s = _in_turns((engine, matmul_engine), batches, seconds)
        calls = [_call(feed) for batch in batches for feed in engine.collate.feeds(batch)]
    engine_s, matmul_s = map(median, zip(*times_s, strict=True))
    texts = sum(map(len, batches))
    operations = sum(graph.flops(*call) for call in calls)
    moved = sum(graph.bytes_moved(*call) for call in calls)
    return RoofedEngine(
        engine=record.name,
        texts_per_s=round(texts / engine_s, 2),
        roof_texts_per_s=round(texts / matmul_s, 2),
        share=round(median(matmul / own for own, matmul in times_s), 4),
        roof_gflops=round(operations / matmul_s / GIGA, 1),
        gflop_per_text=round(operations / texts / GIGA, 5),
        flop_per_byte=round(operations / moved, 2),
        roof=column_of(record)[0],
    )


def _in_turns(
    engines: Sequence[CollatedEngine], batches: Sequence[Sequence[Encoding]], seconds: float
) -> list[list[float]]:
    """Return the times of passes over all batches, a list with the times of the engines per round.

    There are at least `ROUNDS` rounds.
    """
    for engine in engines:
        _pass_s(engine, batches)  # warm-up: the runtime compiles for each new shape
    rounds: list[list[float]] = []
    start_s = time.perf_counter()
    while len(rounds) < ROUNDS or time.perf_counter() - start_s < seconds:
        rounds.append([_pass_s(engine, batches) for engine in engines])
    return rounds


def _call(feed: InputFeed) -> tuple[int, int, int]:
    """Return rows, tokens per row and texts of a call."""
    rows, width = feed.arrays["input_ids"].shape
    return rows, width, len(feed.rows)


def _pass_s(engine: CollatedEngine, batches: Sequence[Sequence[Encoding]]) -> float:
    start_s = time.perf_counter()
    for batch in batches:
        engine.infer(batch)
    return time.perf_counter() - start_s


def _batches(encodings: Sequence[Encoding]) -> list[list[Encoding]]:
    tokens = float(np.mean([len(encoding) for encoding in encodings]))
    size = max(1, int(BATCH_TOKENS / tokens))
    starts = range(0, min(len(encodings), BATCHES * size), size)
    return [[*encodings[start : start + size]] for start in starts]


def _encoder(run: Path) -> EncoderShape:
    path = run / "checkpoint" / "config.json"
    try:
        return EncoderShape.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        message = f"{path}: expected the config of an encoder with BERT's architecture"
        hint = "choose such a run: matrix products of other architectures have other shapes"
        raise ConfigError(message, hint) from error


if __name__ == "__main__":
    sys.exit(main())
