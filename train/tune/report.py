"""The result of `pipe tune`: its record, and the report."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import mean

from pydantic import ValidationError

from pipework.errors import RunFolderError
from pipework.html import page as frame
from pipework.progress import counted
from pipework.record import Record
from pipework.tasks.kinds import Metric, metric_in_words
from pipework.train.tune.search_space import NumberRange, SearchSpace, SettingRange
from pipework.train.tune.trials import TrialRecord, TrialState

RESULT, REPORT = "result.json", "report.html"
FINAL = "final"  # folder of the final runs
FILES = (FINAL, RESULT, REPORT)


class FinalConfig(Record):
    """The final runs of a config.

    Attributes:
        trial: number of the trial that has the config; None for the unchanged config.
        runs: run folders, relative to the folder of the search, one for each seed.
        scores: their scores on dev.
    """

    trial: int | None
    runs: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def name(self) -> str:
        """The name of the config in texts for people."""
        return "unchanged config" if self.trial is None else f"trial {self.trial}"


class SplitComparison(Record):
    """The scores of the best final config and of the unchanged config on a split, by seed.

    Attributes:
        split: dev or test.
        rows: number of its rows.
        unchanged: scores of the unchanged config.
        best: scores of the best config, with the same seeds.
        low: lower bound of the 95 % interval of the difference of the mean scores.
        high: upper bound.
    """

    split: str
    rows: int
    unchanged: tuple[float, ...]
    best: tuple[float, ...]
    low: float
    high: float

    def describe(self, metric: Metric) -> str:
        """Return the comparison as a sentence."""
        before, after = mean(self.unchanged), mean(self.best)
        return (
            f"{self.split}: mean {metric_in_words(metric)} {after:.4f}, unchanged config "
            f"{before:.4f}, difference {after - before:+.4f} (95 % interval {self.low:+.4f} to "
            f"{self.high:+.4f}), {counted(len(self.best), 'seed')}, {counted(self.rows, 'row')}"
        )


class TuneResult(Record):
    """The result of a search.

    Attributes:
        metric: the metric of the task.
        trials: the finished trials.
        unchanged: the values of the config as TOML, by key; empty if it has none.
        finals: the final runs, first of the unchanged config, then of the best trials.
        standard_error: standard error of the difference of two mean dev scores of `finals`.
        comparisons: the best trial of `finals` and the unchanged config on dev and on test; empty
            if all trials have the values of the unchanged config.
    """

    metric: Metric
    trials: tuple[TrialRecord, ...]
    unchanged: dict[str, str]
    finals: tuple[FinalConfig, ...]
    standard_error: float
    comparisons: tuple[SplitComparison, ...]

    @property
    def best(self) -> FinalConfig:
        """The trial with the best mean dev score, else the unchanged config."""
        return best_final(self.finals)

    @property
    def gain(self) -> float:
        """The mean dev score of the best trial minus that of the unchanged config."""
        return mean(self.best.scores) - mean(self.finals[0].scores)

    @property
    def chosen(self) -> FinalConfig:
        """The best trial if its gain is more than one standard error, else the unchanged config.

        The rule of one standard error, Breiman et al. 1984, Classification and Regression Trees.
        """
        return self.best if self.gain > self.standard_error else self.finals[0]

    def values(self, final: FinalConfig) -> dict[str, str]:
        """Return the values of a final config as TOML, by key."""
        if final.trial is None:
            return self.unchanged
        return {trial.number: trial.values for trial in self.trials}[final.trial]


def best_final(finals: Sequence[FinalConfig]) -> FinalConfig:
    """Return the trial with the best mean score, the first of equal ones, else the only config."""
    return max(finals[1:] or finals, key=lambda final: mean(final.scores))


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
            return f"trial {trial.number}: {score} with {_short_values(trial.values)}"
        case TrialState.PRUNED:
            return f"trial {trial.number}: {score}, pruned after {trial.share:.0%} of its steps"
        case TrialState.FAIL:
            return f"trial {trial.number} failed: {trial.reason}"


def summary(out: Path, result: TuneResult) -> Iterator[str]:
    """Yield the result as lines."""
    yield _trained(result)
    for comparison in result.comparisons:
        yield comparison.describe(result.metric)
    yield _verdict(result)
    yield f"report: {out / REPORT}"
    yield f"next: pipe export {out / result.chosen.runs[0]} --to auto"


def _verdict(result: TuneResult) -> str:
    if result.best is result.finals[0]:
        return "keep the unchanged config: all complete trials have its values"
    gain = f"{result.gain:+.4f} on dev, standard error {result.standard_error:.4f}"
    if result.chosen is result.best:
        return f"use {result.best.name} ({gain}): {_short_values(result.values(result.best))}"
    return (
        f"keep the unchanged config: the gain of {result.best.name} is not more than one standard "
        f"error ({gain})"
    )


def _short_values(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key} = {_short(value)}" for key, value in values.items())


def _trained(result: TuneResult) -> str:
    counts = Counter(trial.state for trial in result.trials)
    states = ", ".join(f"{counts[state]} {state}" for state in TrialState)
    finals = f"{counted(len(result.finals), 'config')} with {len(result.best.scores)} seeds each"
    return f"{counted(len(result.trials), 'trial')} ({states}); final runs of {finals}"


def html(out: Path, space: SearchSpace, result: TuneResult) -> str:
    """Return the report as HTML."""
    parts = (
        frame.header(out.absolute().name, _trained(result)),
        _verdict_paragraph(result),
        _final_runs(result),
        _plots(space.ranges, result),
        _trials(result),
    )
    return frame.render_page(f"{out.absolute().name}: search of settings", parts)


def _verdict_paragraph(result: TuneResult) -> str:
    decision = _verdict(result)
    headline = escape(decision[0].upper() + decision[1:])
    sentences = [comparison.describe(result.metric) for comparison in result.comparisons]
    note = (
        "Dev has selected the best trial, which favours it there; the test rows have selected "
        "nothing. The interval is a paired bootstrap over rows and seeds."
    )
    kind = "better" if result.chosen is result.best else "undecided"
    lines = "<br>".join(map(escape, (*sentences, note)))
    return f'<p class="verdict {kind}"><b>{headline}</b><br>{lines}</p>'


def _final_runs(result: TuneResult) -> str:
    unchanged = result.finals[0]
    rows = (
        frame.cells(
            (
                final.name,
                f"{mean(final.scores):.4f}",
                f"{mean(final.scores) - mean(unchanged.scores):+.4f}",
                ", ".join(f"{score:.4f}" for score in final.scores),
                *map(_short, result.values(final).values()),
            )
        )
        for final in result.finals
    )
    score = f"dev {metric_in_words(result.metric)}"
    columns = ("config", f"mean {score}", "difference", "by seed", *result.unchanged)
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
        plots.append((setting.key, f"Range: {setting}. Each point is a trial.", drawn))
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
