"""The engines of a run on one HTML page: how fast, how close to the checkpoint, what was proven."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from pipework.errors import ConfigError
from pipework.html.page import cells, header, plots, section, table, tiles, whole
from pipework.html.svg import GRID, SERIES, STYLE, WIDTH_IN, number, svg
from pipework.run_folder.engine_record import EngineRecord, Parity
from pipework.run_folder.manifest import Manifest

COLUMNS = (
    *("engine", "precision", "layout", "MB", "max difference", "tolerance", "same answers"),
    *("score", "change, 95 % interval", "texts/s", "p50 ms", "state"),
)


def write_page(path: Path, manifest: Manifest) -> None:
    """Write the page.

    Raises:
        ConfigError: the run has no engines, or the page cannot be written.
    """
    if not manifest.engines:
        message = f"run {manifest.identity.name} has no engines to draw"
        raise ConfigError(message, "make some: pipe export RUN --to auto")
    try:
        path.write_text(page(manifest), encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise ConfigError(message) from error


def page(manifest: Manifest) -> str:
    """Return the page as HTML that needs nothing else."""
    name, engines = manifest.identity.name, manifest.engines
    line = f"{manifest.model.family}, {manifest.model.head} head; {manifest.task.kind}"
    drawn = [one for one in (_speeds(engines), _differences(engines)) if one is not None]
    kept = [f"{one.name}: {layer.name}, {layer.precision}" for one in engines for layer in one.kept]
    parts = [
        header(f"Engines of {name}", line),
        tiles(_headline(engines)),
        plots(drawn),
        section("Engines", table(COLUMNS, (cells(_row(one)) for one in engines))),
    ]
    if kept:
        parts.append(section("Layers left in a higher precision", table(("",), map(_cell, kept))))
    return whole(f"Engines of {name}", parts)


def _cell(text: str) -> str:
    return cells((text,))


def _headline(engines: Sequence[EngineRecord]) -> list[tuple[str, str, str]]:
    proven = [one for one in engines if one.proven]
    found = [(f"{len(proven)}", "", f"proven engines of {len(engines)}")]
    timed = [one for one in proven if one.speed is not None]
    if timed:
        fastest, slowest = (timed[place].speed for place in (0, -1))
        if fastest is not None and slowest is not None:
            found.append((f"{fastest.texts_per_s:,.0f}", "texts/s", f"fastest: {timed[0].name}"))
            times = fastest.texts_per_s / slowest.texts_per_s
            found.append((f"{times:.1f}", "times", f"as fast as {timed[-1].name}"))
    return found


def _speeds(engines: Sequence[EngineRecord]) -> tuple[str, str, str] | None:
    timed = [(one.name, one.speed) for one in engines if one.speed is not None]
    if not timed:
        return None
    speed = timed[0][1]
    caption = f"Texts/s, {speed.batch} a call, in the order of dev; {speed.threads} threads"
    rates = [found.texts_per_s for _, found in timed]
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure, axes = _bars([name for name, _ in timed], rates)
        axes.set_xlim(0, 1.05 * max(rates))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
        axes.set_xlabel("texts/s")
        return "How fast", caption, svg(figure, "Texts per second of each engine")


def _differences(engines: Sequence[EngineRecord]) -> tuple[str, str, str] | None:
    found = [(one.name, one.parity) for one in engines if one.parity is not None]
    if not found:
        return None
    caption = "Largest difference of a logit from the checkpoint's; the stroke is the tolerance"
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure, axes = _bars([name for name, _ in found], [parity.max_abs for _, parity in found])
        axes.set_xscale("log")
        axes.set_xlim(1e-8, 1e3)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:.0e}"))
        axes.xaxis.set_minor_locator(NullLocator())
        for place, (_, parity) in enumerate(found):
            axes.plot([parity.tolerance.max_abs] * 2, [place - 0.4, place + 0.4], color=SERIES[3])
        axes.set_xlabel("logits apart (logarithmic)")
        return "How close", caption, svg(figure, "Largest difference of each engine")


def _bars(names: Sequence[str], values: Sequence[float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(names)), values, height=0.7, color=SERIES[0], edgecolor=GRID)
    named = [f"{name}: {value:,.3g}" for name, value in zip(names, values, strict=True)]
    axes.set_yticks(range(len(names)), named)
    axes.invert_yaxis()
    return figure, axes


def _scores(parity: Parity) -> tuple[str, str]:
    scores = parity.scores
    if scores is None:
        return "no labelled rows", ""
    interval = f"({scores.low:+.4f} to {scores.high:+.4f})"
    return f"{parity.metric} {scores.engine:.4f}", f"{scores.change:+.4f} {interval}"


def _row(engine: EngineRecord) -> tuple[str, ...]:
    parity, speed = engine.parity, engine.speed
    proof = ("",) * 5
    if parity is not None:
        proof = (
            f"{parity.max_abs:.1e}",
            f"{parity.tolerance.max_abs:g}",
            f"{parity.argmax_agreement:.2%}",
            *_scores(parity),
        )
    return (
        engine.name,
        engine.precision,
        engine.layout,
        f"{sum(file.size for file in engine.files) / 1e6:.1f}",
        *proof,
        "" if speed is None else f"{speed.texts_per_s:,.0f}",
        "" if speed is None else f"{speed.p50_ms:.1f}",
        "proven" if engine.proven else "built, not run",
    )
