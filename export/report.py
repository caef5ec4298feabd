"""An HTML report of a run's engines: speed, difference from the checkpoint, parity status."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from pipework.errors import ConfigError
from pipework.export.ranking import fastest
from pipework.html.page import cells, header, plots, render_page, section, table, tiles
from pipework.html.svg import GRID, SERIES, STYLE, WIDTH_IN, number, svg
from pipework.run_folder.engine_record import EngineRecord, Parity, unreliable_ranking
from pipework.run_folder.files import check_writable, write_atomically
from pipework.run_folder.manifest import Manifest
from pipework.serve.config import EngineSettings
from pipework.serve.engines import choose_engine

FIRST_COLUMNS = ("engine", "precision", "layout", "MB", "max difference", "tolerance")
LAST_COLUMNS = (
    *("score", "change, 95 % interval", "calibration error, change; Brier score, change"),
    *("texts/s", "p50 ms", "state"),
)
DEFAULTS = EngineSettings()
USUAL = "onnx-fp32"
LARGE = 1000
TICKS = ("1e-6", "0.001", "1", "1000")  # short, because names leave little room for the axis


def write_page(path: Path, manifest: Manifest, settings: EngineSettings = DEFAULTS) -> None:
    """Write the engine report as HTML; `settings` determine the default engine.

    Raises:
        ConfigError: the run has no engines, or `path` cannot be written.
    """
    check_writable(path)
    if not manifest.engines:
        message = f"run {manifest.identity.name} has no engines to report"
        raise ConfigError(message, "build engines first: pipe export RUN --to auto")
    write_atomically(path, page(manifest, settings).encode())


def page(manifest: Manifest, settings: EngineSettings = DEFAULTS) -> str:
    """Return the report as a self-contained HTML page."""
    name, engines = manifest.identity.name, manifest.engines
    subtitle = f"{manifest.model.family}, {manifest.model.head} head; {manifest.task.kind}"
    warning = unreliable_ranking(engine.speed for engine in engines)
    charts = [chart for chart in (_speeds(engines), _differences(engines)) if chart is not None]
    fallback_layers = [
        f"{engine.name}: {layer.name}, {layer.precision}"
        for engine in engines
        for layer in engine.built.kept
    ]
    rows = (cells(_row(engine, manifest, settings)) for engine in engines)
    changes = [f"changed {change}" for change in manifest.task.change_columns]
    columns = (*FIRST_COLUMNS, *changes, *LAST_COLUMNS)
    parts = [
        header(f"Engines of {name}", subtitle),
        f'<p class="alarm">{escape(warning)}</p>' if warning else "",
        tiles(_headline(engines)),
        plots(charts),
        section("Engines", table(columns, rows, kind="compact") + _default(manifest, settings)),
    ]
    if fallback_layers:
        layers = table(("",), (cells((layer,)) for layer in fallback_layers))
        parts.append(section("Layers in a higher precision", layers))
    return render_page(f"Engines of {name}", parts)


def _default(manifest: Manifest, settings: EngineSettings) -> str:
    """Return the default engine, and why it is the default."""
    default = choose_engine(manifest, settings.name, settings)
    line = f"Served by default: {default.name} ({settings.reason(default, manifest.task)})."
    return f'<p class="quiet">{escape(line)}</p>'


def _headline(engines: Sequence[EngineRecord]) -> list[tuple[str, str, str]]:
    proven = [engine for engine in engines if engine.proven]
    headline = [(f"{len(proven)}", "", f"proven engines of {len(engines)}")]
    timed = [engine for engine in proven if engine.speed is not None]
    if timed:
        # The usual engine of other programs is onnx-fp32; without it, the slowest engine.
        usual = next((engine for engine in timed if engine.name == USUAL), timed[-1])
        first, reference = timed[0].speed, usual.speed
        if first is not None and reference is not None:
            one = len(fastest(timed)) == 1
            title = "fastest" if one else "first, and others may be as fast"
            headline.append((f"{first.texts_per_s:,.0f}", "texts/s", f"{title}: {timed[0].name}"))
            times = first.texts_per_s / reference.texts_per_s
            if usual is not timed[0]:
                headline.append((f"{times:.1f}", "times", f"as fast as {usual.name}"))
    return headline


def _speeds(engines: Sequence[EngineRecord]) -> tuple[str, str, str] | None:
    timed = [(engine.name, engine.speed) for engine in engines if engine.speed is not None]
    if not timed:
        return None
    speed = timed[0][1]
    caption = f"Texts/s in batches of {speed.batch} dev texts; {speed.threads} threads"
    rates = [speed.texts_per_s for _, speed in timed]
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure, axes = _bars([name for name, _ in timed], rates)
        axes.set_xlim(0, 1.05 * max(rates))
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
        axes.set_xlabel("texts/s")
        return "Speed", caption, svg(figure, "Texts per second of each engine")


def _differences(engines: Sequence[EngineRecord]) -> tuple[str, str, str] | None:
    checked = [(engine.name, engine.parity) for engine in engines if engine.parity is not None]
    if not checked:
        return None
    caption = "Largest difference from the checkpoint's logits; the vertical mark is the tolerance"
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure, axes = _bars(
            [name for name, _ in checked], [parity.max_abs for _, parity in checked]
        )
        axes.set_xscale("log")
        axes.set_xlim(1e-8, 1e3)
        axes.set_xticks([float(tick) for tick in TICKS], TICKS)
        axes.xaxis.set_minor_locator(NullLocator())
        for index, (_, parity) in enumerate(checked):
            limit = parity.tolerance.max_abs * parity.unit
            axes.plot([limit] * 2, [index - 0.4, index + 0.4], color=SERIES[3])
        axes.set_xlabel("logit difference (log scale)")
        drawn = svg(figure, "Largest difference of each engine")
        return "Difference from the checkpoint", caption, drawn


def _bars(names: Sequence[str], values: Sequence[float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(names)), values, height=0.7, color=SERIES[0], edgecolor=GRID)
    labels = [f"{name}: {_short(value)}" for name, value in zip(names, values, strict=True)]
    axes.set_yticks(range(len(names)), labels)
    axes.invert_yaxis()
    return figure, axes


def _short(value: float) -> str:
    """Format a value with three digits, or a large value without an exponent."""
    return f"{value:,.0f}" if value >= LARGE else f"{value:.3g}"


def _scores(parity: Parity) -> tuple[str, str, str]:
    scores, calibration = parity.scores, parity.calibration
    if scores is None:
        return "no labelled rows", "", ""
    calibrated = ""
    if calibration is not None:
        calibrated = (
            f"{calibration.engine:.4f}, {calibration.change:+.4f}; "
            f"{calibration.brier_engine:.4f}, {calibration.brier_change:+.4f}"
        )
    interval = f"({scores.low:+.4f} to {scores.high:+.4f})"
    return f"{parity.metric} {scores.engine:.4f}", f"{scores.change:+.4f} {interval}", calibrated


def _row(engine: EngineRecord, manifest: Manifest, settings: EngineSettings) -> tuple[str, ...]:
    parity, speed = engine.parity, engine.speed
    parity_cells = ("",) * (5 + len(manifest.task.change_columns))
    if parity is not None:
        parity_cells = (
            f"{parity.max_abs:.1e}",
            f"{parity.tolerance.max_abs * parity.unit:.3g}",
            *manifest.task.change_cells(parity),
            *_scores(parity),
        )
    return (
        engine.name,
        engine.precision,
        engine.layout,
        f"{sum(file.size for file in engine.files) / 1e6:.1f}",
        *parity_cells,
        "" if speed is None else f"{speed.texts_per_s:,.0f}",
        "" if speed is None else f"{speed.p50_ms:.1f}",
        _state(engine, manifest, settings),
    )


def _state(engine: EngineRecord, manifest: Manifest, settings: EngineSettings) -> str:
    if not engine.proven:
        return "built, not run"
    if engine not in manifest.current_engines:
        return "checked with another model"
    default = engine.name == choose_engine(manifest, settings.name, settings).name
    return "proven, default" if default else "proven"
