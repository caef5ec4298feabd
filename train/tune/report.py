"""The result of `pipe tune`: its record, and the report."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import mean

from pydantic import ValidationError

from pipework.errors import RunFolderError
from pipework.html import page as frame
from pipework.progress import counted
from pipework.record import Record
from pipework.tasks.kinds import Metric
from pipework.train.report.verdict import metric_in_words
from pipework.train.tune.search_space import NumberRange, SearchSpace, SettingRange
from pipework.train.tune.trials import TrialRecord, TrialState

RESULT, REPORT = "result.json", "report.html"
UNCHANGED, WINNER = "config", "winner"  # folders of the final runs
FILES = (UNCHANGED, WINNER, RESULT, REPORT)


class SplitComparison(Record):
    """The scores of the final runs on a split, by seed.

    Attributes:
        split: dev or test.
        rows: number of its rows.
        unchanged: scores of the unchanged config.
        winner: scores of the winner, with the same seeds.
        low: lower bound of the 95 % interval of the difference of the mean scores.
        high: upper bound.
    """

    split: str
    rows: int
    unchanged: tuple[float, ...]
    winner: tuple[float, ...]
    low: float
    high: float

    @property
    def gain(self) -> float:
        """The difference of the mean scores."""
        return mean(self.winner) - mean(self.unchanged)

    def describe(self, metric: Metric) -> str:
        """Return the comparison as a sentence."""
        score = f"mean {metric_in_words(metric)}"
        over = f"{counted(len(self.winner), 'seed')}, {counted(self.rows, 'row')}"
        if self.winner == self.unchanged:
            return f"{self.split}: {score} {mean(self.unchanged):.4f}, {over}"
        if self.low > 0:
            verdict = f"the winner is better by {self.gain:.4f}"
        elif self.high < 0:
            verdict = f"the winner is worse by {-self.gain:.4f}"
        else:
            verdict = f"the winner is not better, difference {self.gain:+.4f}"
        return (
            f"{self.split}: {verdict} (95 % interval {self.low:+.4f} to {self.high:+.4f}): {score} "
            f"{mean(self.winner):.4f}, unchanged config {mean(self.unchanged):.4f}, {over}"
        )


class TuneResult(Record):
    """The result of a search.

    Attributes:
        metric: the metric of the task.
        trials: the finished trials.
        winner: the number of the best trial.
        unchanged: the values of the config as TOML, by key; empty if it has none.
        importances: the share of each setting in the variance of the scores.
        runs: the final runs of the unchanged config and of the winner, relative to the folder.
        comparisons: their scores on dev and on test.
    """

    metric: Metric
    trials: tuple[TrialRecord, ...]
    winner: int
    unchanged: dict[str, str]
    importances: dict[str, float]
    runs: dict[str, tuple[str, ...]]
    comparisons: tuple[SplitComparison, ...]

    @property
    def winning(self) -> TrialRecord:
        """The best trial."""
        return next(trial for trial in self.trials if trial.number == self.winner)


def read_result(out: Path) -> TuneResult | None:
    """Read the result of a finished search; None if it is not finished.

    Raises:
        RunFolderError: it was written by another version.
    """
    path = out / RESULT
    if not path.exists():
        return None
    try:
        return TuneResult.model_validate_json(path.read_bytes())
    except ValidationError as error:
        message = f"{path} was not written by this version: {error.errors()[0]['msg']}"
        raise RunFolderError(message, f"delete {path} to compare the final runs again") from error


def describe_trial(trial: TrialRecord) -> str:
    """Return the outcome of a trial as a line."""
    score = "no score" if trial.score is None else f"{trial.score:.4f}"
    match trial.state:
        case TrialState.COMPLETE:
            return f"trial {trial.number}: {score} with {_values(trial)}"
        case TrialState.PRUNED:
            return f"trial {trial.number}: {score}, pruned after {trial.share:.0%} of its steps"
        case TrialState.FAIL:
            return f"trial {trial.number} failed: {trial.reason}"


def summary(out: Path, result: TuneResult) -> Iterator[str]:
    """Yield the result as lines."""
    yield _chosen(result)
    yield _winner(result)
    for comparison in result.comparisons:
        yield comparison.describe(result.metric)
    yield f"report: {out / REPORT}"
    yield f"next: pipe export {out / result.runs[WINNER][0]} --to auto"


def _winner(result: TuneResult) -> str:
    if result.runs[UNCHANGED] == result.runs[WINNER]:
        return "not better: no trial scored higher on dev than the unchanged config"
    return f"winner: {_values(result.winning)}"


def _values(trial: TrialRecord) -> str:
    return ", ".join(f"{key} = {_short(value)}" for key, value in trial.values.items())


def _chosen(result: TuneResult) -> str:
    counts = Counter(trial.state for trial in result.trials)
    states = ", ".join(f"{counts[state]} {state}" for state in TrialState)
    return f"{len(result.trials)} trials ({states}): trial {result.winner} was the best on dev"


def html(out: Path, space: SearchSpace, result: TuneResult) -> str:
    """Return the report as HTML."""
    parts = (
        frame.header(out.absolute().name, _chosen(result)),
        _verdict(result),
        _tiles(result),
        _settings(space, result),
        _final_runs(result),
        _plots(space.ranges, result),
        _trials(result),
    )
    return frame.render_page(f"{out.absolute().name}: search of settings", parts)


def _verdict(result: TuneResult) -> str:
    """Return the comparisons as a paragraph; the last decides its colour: test, if there is one."""
    last = result.comparisons[-1]
    kind = "better" if last.low > 0 else "worse" if last.high < 0 else "undecided"
    sentences = [comparison.describe(result.metric) for comparison in result.comparisons]
    lines = "<br>".join(f"<b>{escape(line)}</b>" for line in (_winner(result), *sentences))
    note = (
        "Dev has selected the winner among all trials, which favours it there; the test rows have "
        "selected nothing. The interval is a paired bootstrap over rows and seeds."
    )
    return f'<p class="verdict {kind}">{lines}<br>{escape(note)}</p>'


def _tiles(result: TuneResult) -> str:
    metric, counts = metric_in_words(result.metric), Counter(trial.state for trial in result.trials)
    tiles = [(f"{counts[state]}", "", f"trials {state}") for state in TrialState]
    for comparison in result.comparisons:
        where = f"mean {metric} on {comparison.split}"
        tiles.append((f"{mean(comparison.winner):.4f}", "", f"{where}, winner"))
        tiles.append((f"{mean(comparison.unchanged):.4f}", "", f"{where}, unchanged config"))
    return frame.tiles(tiles)


def _settings(space: SearchSpace, result: TuneResult) -> str:
    rows = (
        frame.cells(
            (
                setting.key,
                str(setting),
                result.unchanged[setting.key],
                _short(result.winning.values[setting.key]),
                f"{result.importances.get(setting.key, 0):.0%}" if result.importances else "",
            )
        )
        for setting in space.ranges
    )
    columns = ("setting", "range", "config", "winner", "importance")
    note = (
        "Importance: the share of a setting in the variance of the scores (PED-ANOVA), estimated "
        "from the complete trials; with few trials it is rough."
    )
    table = frame.table(columns, rows)
    return frame.section("Settings", f'<p class="quiet">{escape(note)}</p>{table}')


def _final_runs(result: TuneResult) -> str:
    columns = ["run"]
    scores: list[Iterable[float]] = []
    for comparison in result.comparisons:
        columns.append(comparison.split)
        scores.append((*comparison.winner, *comparison.unchanged))
    runs = (*result.runs[WINNER], *result.runs[UNCHANGED])
    rows = (
        frame.cells((run, *(f"{score:.4f}" for score in row)))
        for run, *row in zip(runs, *scores, strict=True)
    )
    return frame.section("Final runs", frame.table(columns, rows))


def _plots(ranges: Sequence[SettingRange], result: TuneResult) -> str:
    from pipework.train.report.plots import over_trials, score_over  # noqa: PLC0415  (matplotlib)

    scored = [trial for trial in result.trials if trial.score is not None]
    numbers = [trial.number for trial in scored]
    scores = [trial.score or 0.0 for trial in scored]
    pruned = [trial.state is TrialState.PRUNED for trial in scored]
    caption = "Best score on dev of each trial. Pruned trials are hollow; the line is the best yet."
    plots = [("Score of each trial", caption, over_trials(numbers, scores, pruned))]
    for setting in ranges:
        values = [trial.values[setting.key] for trial in scored]
        if isinstance(setting, NumberRange):
            places = [float(value) for value in values]
            drawn = score_over(setting.key, places, scores, pruned, log=setting.log)
        else:
            drawn = score_over(setting.key, values, scores, pruned, choices=setting.choices)
        plots.append((setting.key, "Each point is a trial.", drawn))
    return frame.section("What mattered", frame.plots(plots))


def _trials(result: TuneResult) -> str:
    keys = list(result.unchanged)
    rows = (
        frame.cells(
            (
                f"{trial.number}",
                trial.state if not trial.reason else f"{trial.state}: {trial.reason}",
                "" if trial.score is None else f"{trial.score:.4f}",
                f"{trial.share:.0%}",
                *(_short(trial.values[key]) for key in keys),
            )
        )
        for trial in result.trials
    )
    columns = ("trial", "state", f"dev {metric_in_words(result.metric)}", "steps", *keys)
    return frame.section("Trials", frame.table(columns, rows))


def _short(value: str) -> str:
    """Return a value as TOML with at most four significant digits."""
    try:
        return value if value.isdecimal() else f"{float(value):.4g}"
    except ValueError:
        return value
