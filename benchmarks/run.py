"""Wiring: a URL or a run folder in, a result out. It writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from benchmarks.machine import provenance
from benchmarks.offline import measure_engine, measure_tokenizing
from benchmarks.results import BenchResult, OfflineLevel
from benchmarks.workload import MAX_WORDS, MEAN_WORDS, Workload
from pipework.encoding import TextEncoder
from pipework.errors import ConfigError, RunFolderError
from pipework.examples import Example, Source
from pipework.inputs import fitting
from pipework.manifest import Manifest, read_manifest
from pipework.progress import Progress
from pipework.records import Columns
from serve.engines import open_proven, runs_here

OFFLINE_BATCHES = (1, 8, 32)
MAX_CONCURRENCY = 256
MAX_BATCH = 1024
MAX_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to measure.

    Attributes:
        source: rows to send, or None for synthetic texts.
        mean_words: of synthetic texts, whose lengths are log-normal.
        batch: texts per request; None means 1 for a URL, and 1, 8 and 32 in a run folder.
        concurrencies: numbers of clients, one level each (a URL only).
        duration_s: seconds per level, after a warm-up of a fifth of that.
        seed: decides the texts and their order.

    Raises:
        ConfigError: a value outside what is sensible.
    """

    source: Source | None = None
    mean_words: float = MEAN_WORDS
    batch: int | None = None
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16)
    duration_s: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the limits that keep a run bounded."""
        if not self.concurrencies:
            message = "--concurrency: expected at least one number of clients"
            raise ConfigError(message, "for example --concurrency 1,2,4,8")
        for clients in self.concurrencies:
            _check("--concurrency", clients, 1, MAX_CONCURRENCY)
        _check("--batch", 1 if self.batch is None else self.batch, 1, MAX_BATCH)
        _check("--words", self.mean_words, 1, MAX_WORDS)
        _check("--seconds", self.duration_s, 0.1, MAX_SECONDS)

    def workload(self, texts_per_request: int, *, fields: Sequence[str]) -> Workload:
        """Read or make the texts.

        Raises:
            DataError: the data file cannot be read.
        """
        if self.source is not None:
            return Workload.read(self.source, texts_per_request=texts_per_request, seed=self.seed)
        return Workload.synthetic(
            texts_per_request=texts_per_request,
            seed=self.seed,
            fields=fields,
            mean_words=self.mean_words,
        )


def bench(target: str, plan: Plan, progress: Progress) -> BenchResult:
    """Measure a server by its URL, or the proven engines of a run folder in this process.

    Raises:
        PipeError: nothing there that could be measured.
    """
    if target.startswith(("http://", "https://")):
        return _bench_url(target.rstrip("/"), plan, progress)
    return _bench_run(Path(target), plan, progress)


def _bench_url(url: str, plan: Plan, progress: Progress) -> BenchResult:
    from benchmarks.load import closed_loop, probe  # noqa: PLC0415  (needs an extra)

    workload = plan.workload(plan.batch or 1, fields=("text",))
    model = probe(url, workload)
    levels = tuple(
        closed_loop(
            url,
            workload,
            concurrency=concurrency,
            duration_s=plan.duration_s,
            warmup_s=plan.duration_s / 5,
            progress=progress,
        )
        for concurrency in plan.concurrencies
    )
    shown = _without_password(url)
    concurrencies = ",".join(str(concurrency) for concurrency in plan.concurrencies)
    return BenchResult(
        command=_command(shown, plan, "--concurrency", concurrencies),
        target=shown,
        model=model,
        provenance=provenance(),
        workload=workload.summary(),
        levels=levels,
    )


def _bench_run(run: Path, plan: Plan, progress: Progress) -> BenchResult:
    manifest = read_manifest(run)
    if not manifest.engines:
        message = f"{run} has no proven engine to measure"
        raise RunFolderError(message, f"export one: pipe export {run} --to onnx")
    batches = OFFLINE_BATCHES if plan.batch is None else (plan.batch,)
    workload = plan.workload(max(batches), fields=manifest.input.fields)
    examples = tuple(
        fitting(example, manifest.input, f"text {number}")
        for number, example in enumerate(workload.examples, start=1)
    )
    name = run.resolve().name  # no path of this machine in a result
    return BenchResult(
        command=_command(name, plan),
        target=name,
        model=manifest.identity.name,
        provenance=provenance(),
        workload=workload.summary(),
        offline=_offline(run, manifest, examples, batches, plan.duration_s, progress),
    )


def _offline(
    run: Path,
    manifest: Manifest,
    examples: tuple[Example, ...],
    batches: tuple[int, ...],
    duration_s: float,
    progress: Progress,
) -> tuple[OfflineLevel, ...]:
    encoder = TextEncoder.open(
        run / manifest.input.tokenizer.path,
        max_length=manifest.input.max_length,
        type_ids=manifest.input.type_ids,
    )
    levels = []
    here = [record for record in manifest.engines if runs_here(record)]
    progress.begin("offline", len(batches) * (1 + len(here)), "levels")
    for batch in batches:
        levels.append(measure_tokenizing(encoder, examples, batch=batch, duration_s=duration_s))
        progress.advance(1)
    for record in here:
        with open_proven(run, manifest, record.name) as engine:
            for batch in batches:
                levels.append(
                    measure_engine(
                        record.name, engine, encoder, examples, batch=batch, duration_s=duration_s
                    )
                )
                progress.advance(1)
    progress.end()
    return tuple(levels)


def _command(target: str, plan: Plan, *more: str) -> tuple[str, ...]:
    words = ["pipe", "bench", target]
    if plan.source is not None:
        words += ["--file", plan.source.path.name, "--columns", _columns(plan.source.columns)]
    elif plan.mean_words != MEAN_WORDS:
        words += ["--words", f"{plan.mean_words:g}"]
    if plan.batch is not None:
        words += ["--batch", str(plan.batch)]
    return (*words, *more, "--seconds", f"{plan.duration_s:g}")


def _columns(columns: Columns) -> str:
    pair = "" if columns.text_pair is None else f",text_pair={columns.text_pair}"
    return f"text={columns.text}{pair}"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _check(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        message = f"{option}: expected {low:g} to {high:g}, found {value:g}"
        raise ConfigError(message)
