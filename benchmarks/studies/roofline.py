"""Engines under their roofs: `python -m pipework.benchmarks.studies.roofline RUN NAME --out FILE [--html PAGE]`.

A roofline (Williams et al. 2009, https://doi.org/10.1145/1498765.1498785): what the machine
multiplies at most, in the engine's runtime and precision, and what its memory lets through. Below
it stands what the products of the encoder alone reach in calls of the engine's shapes. Engine and
products take turns on the same texts, a batch of the server's size a call.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from pydantic import ValidationError

from pipework import console
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.matmul_graph import Encoder, Products
from pipework.benchmarks.studies.report_roofline import write_page
from pipework.benchmarks.studies.roofline_results import Roof, RoofedEngine, RooflineResult
from pipework.benchmarks.studies.roofs import bandwidth_gb_s, roof_gflops, roof_name, written
from pipework.errors import ConfigError, PipeError, in_words
from pipework.export.inference import open_encoder
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.serve.config import QueueSettings
from pipework.serve.engines import open_engine, runs_here
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Feed
from pipework.text.encoding import Encoding

ROUNDS = 5
BATCHES = 12
GIGA = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """An engine and its products, both open, and the products as they were made."""

    engine: CollatedEngine
    alone: CollatedEngine
    products: Products


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the proven engines of a run and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.roofline", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines")
    parser.add_argument("name", help="of the model, as the table shows it")
    parser.add_argument("--engine", action="append", default=[], help="only this one")
    parser.add_argument("--seconds", type=float, default=10, help="for which each is measured")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    parser.add_argument("--html", type=Path, help="write a page with the roofline drawn here")
    given = parser.parse_args(arguments)
    progress = console.progress()
    try:
        for path in filter(None, (given.out, given.html)):
            check_writable(path)
        result = roofline(given.run, given.name, given.engine, given.seconds, progress)
        write_result(given.out, result)
        if given.html is not None:
            write_page(given.html, result)
    except (PipeError, ModuleNotFoundError) as error:
        known = in_words(error)
        if known is None:
            raise
        sys.stderr.write(f"error: {known}\n{known.hint}\n")
        return known.exit_code
    finally:
        progress.close()
    for one in result.engines:
        console.say(f"{one.engine}: {one.share:.0%} of {one.roof_texts_per_s:,.0f} texts/s")
    return 0


def roofline(
    run: Path, name: str, engines: Sequence[str], seconds: float, progress: Progress
) -> RooflineResult:
    """Measure each proven engine of a run, or those named, beside its products and its roof.

    Raises:
        ConfigError: the encoder is not of BERT's kind, or there is no such engine.
        PipeError: the run cannot be read.
    """
    manifest = read_manifest(run)
    chosen = [
        one
        for one in manifest.engines
        if one.proven and runs_here(one) and (not engines or one.name in engines)
    ]
    if not chosen:
        there = ", ".join(one.name for one in manifest.engines) or "none"
        message = f"{run}: expected a proven engine to measure, found {there}"
        raise ConfigError(message, f"export one: pipe export {run} --to auto")
    workload = Workload.synthetic(texts_per_request=1, seed=0, fields=manifest.input.fields)
    batches = _batches(open_encoder(run, manifest).encode(workload.examples))
    encoder = _encoder(run)
    progress.begin("engines", len(chosen), "engines")
    found = []
    for record in chosen:
        found.append(_beside(run, manifest, record, encoder, batches, seconds))
        progress.advance(1)
    progress.end()
    roofs = {roof_name(one): one for one in chosen}
    return RooflineResult(
        model=name,
        texts=workload.source,
        batch_tokens=QueueSettings().batch_tokens,
        engines=tuple(sorted(found, key=lambda one: -one.texts_per_s)),
        roofs=tuple(
            _roof(label, roof_gflops(one, manifest), found) for label, one in roofs.items()
        ),
        bandwidth_gb_s=round(bandwidth_gb_s(), 2),
        command=_command(name, engines, seconds),
        provenance=provenance(),
    )


def _command(name: str, engines: Sequence[str], seconds: float) -> tuple[str, ...]:
    only = (word for engine in engines for word in ("--engine", engine))
    times = ("--seconds", f"{seconds:g}")
    return (
        "python",
        "-m",
        "pipework.benchmarks.studies.roofline",
        "RUN",
        name,
        *only,
        *times,
        "--out",
        "FILE",
    )


def _roof(name: str, gflops: float, found: Sequence[RoofedEngine]) -> Roof:
    below = (one.roof_gflops for one in found if one.roof == name)
    return Roof(name=name, gflops=round(max(gflops, *below), 1))


def _beside(
    run: Path,
    manifest: Manifest,
    record: EngineRecord,
    encoder: Encoder,
    batches: Sequence[Sequence[Encoding]],
    seconds: float,
) -> RoofedEngine:
    with (
        tempfile.TemporaryDirectory() as folder,
        open_engine(run / record.files[0].path, record, manifest) as engine,
    ):
        products = Products(
            encoder=encoder,
            variant=record,
            type_ids=manifest.input.type_ids,
            first_only=engine.collate.first_only,
            classes=len(manifest.task.labels),
        )
        with open_engine(written(products, Path(folder)), record, manifest) as alone:
            engine.learn_costs(manifest.input.max_length)
            alone.collate = engine.collate
            sides = Sides(engine=engine, alone=alone, products=products)
            return _measured(record, sides, batches, seconds)


def _measured(
    record: EngineRecord, sides: Sides, batches: Sequence[Sequence[Encoding]], seconds: float
) -> RoofedEngine:
    for one in (sides.engine, sides.alone):
        _pass_s(one, batches)  # a runtime compiles for each shape that it has not seen
    shares: list[float] = []
    engine_s: list[float] = []
    alone_s: list[float] = []
    start_s = time.perf_counter()
    while len(shares) < ROUNDS or time.perf_counter() - start_s < seconds:
        engine_s.append(_pass_s(sides.engine, batches))
        alone_s.append(_pass_s(sides.alone, batches))
        shares.append(alone_s[-1] / engine_s[-1])
    texts = sum(map(len, batches))
    calls = [_call(feed) for batch in batches for feed in sides.engine.collate.feeds(batch)]
    operations = sum(sides.products.flops(*call) for call in calls)
    moved = sum(sides.products.bytes_moved(*call) for call in calls)
    return RoofedEngine(
        engine=record.name,
        texts_per_s=round(texts / median(engine_s), 2),
        roof_texts_per_s=round(texts / median(alone_s), 2),
        share=round(median(shares), 4),
        roof_gflops=round(operations / median(alone_s) / GIGA, 1),
        gflop_per_text=round(operations / texts / GIGA, 5),
        flop_per_byte=round(operations / moved, 2),
        roof=roof_name(record),
    )


def _call(feed: Feed) -> tuple[int, int, int]:
    """Return the rows, the tokens of each, and the texts of a call."""
    rows, width = feed.arrays["input_ids"].shape
    return rows, width, len(feed.rows)


def _pass_s(engine: CollatedEngine, batches: Sequence[Sequence[Encoding]]) -> float:
    start_s = time.perf_counter()
    for batch in batches:
        engine.infer(batch)
    return time.perf_counter() - start_s


def _batches(encodings: Sequence[Encoding]) -> list[list[Encoding]]:
    tokens = float(np.mean([len(one) for one in encodings]))
    size = max(1, int(QueueSettings().batch_tokens / tokens))
    starts = range(0, min(len(encodings), BATCHES * size), size)
    return [[*encodings[start : start + size]] for start in starts]


def _encoder(run: Path) -> Encoder:
    path = run / "checkpoint" / "config.json"
    try:
        return Encoder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        message = f"{path}: expected the config of an encoder of BERT's kind"
        raise ConfigError(message, "others have products of other shapes") from error


if __name__ == "__main__":
    sys.exit(main())
