"""Limits of the changes of predictions that an engine may cause and still be the default."""

from pipework.run_folder.engine_record import EngineRecord, Precision
from pipework.settings import NotNegative, Settings
from pipework.tasks.change import PredictionChange
from pipework.tasks.task import Task


class ChangeLimits(Settings):
    """How far the predictions of the default engine may differ from the checkpoint's.

    The limits apply to the dev rows and edge cases of the parity check, and to the reference rows
    of a check on another machine.

    Attributes:
        label_changes: largest share of inputs whose label changed; one input may always change,
            except with 0. A share of 0.002 is less than one of 408 rows.
        probability_change: largest change of a probability.
        calibration_change: largest increase of the calibration error on dev.
        range_change: largest change of a value, as a share of the range of the targets, for a
            regression.
    """

    label_changes: NotNegative = 0.002
    probability_change: NotNegative = 0.1
    calibration_change: NotNegative = 0.01
    range_change: NotNegative = 0.02

    def allow(self, engine: EngineRecord, task: Task, here: PredictionChange | None = None) -> bool:
        """Return whether an engine may be the default.

        The changes of an engine without a parity record are unknown, so its precision decides.

        Args:
            engine: the engine.
            task: the task of the model.
            here: its changes in a check on this machine.
        """
        changes = [change for change in (engine.parity, here) if change is not None]
        if not changes:
            return engine.precision in (Precision.FP32, Precision.FP16)
        return self._calibrated(engine) and all(self._hold(change, task) for change in changes)

    def describe(self, task: Task) -> str:
        """Return the limits of a task, as text."""
        limits = task.describe_limits(
            labels=self.label_changes,
            probability=self.probability_change,
            value_range=self.range_change,
        )
        if not task.has_labels:
            return limits
        return f"{limits}, calibration error by up to {self.calibration_change:.3g}"

    def reason(self, engine: EngineRecord, task: Task) -> str:
        """Return the limits that the default engine holds, or its changes beyond them, as text."""
        if engine.parity is None or self.allow(engine, task):
            return f"within the limits: {self.describe(task)}"
        return f"changes {self.describe_change(engine, task, engine.parity)}: beyond the limits"

    def describe_change(self, engine: EngineRecord, task: Task, change: PredictionChange) -> str:
        """Return the changes of an engine, with a change of the calibration beyond the limit."""
        text = task.describe_change(change)
        if self._calibrated(engine) or engine.parity is None or engine.parity.calibration is None:
            return text
        return f"{text}, calibration error by {engine.parity.calibration.change:+.3f}"

    def _calibrated(self, engine: EngineRecord) -> bool:
        found = None if engine.parity is None else engine.parity.calibration
        # A row is the resolution of the error: one changed label may move it by 1 / rows.
        return found is None or found.change <= self.calibration_change + 1 / found.rows

    def _hold(self, change: PredictionChange, task: Task) -> bool:
        largest = task.allowed_change(
            probability=self.probability_change, value_range=self.range_change
        )
        # One input is the resolution of a share: an engine that changes just 0.2 % of all labels
        # changes at least one of 408 in more than half of the samples.
        one = change.flips <= 1 and self.label_changes > 0
        same = one or change.argmax_agreement >= 1 - self.label_changes
        return same and change.max_change <= largest


DEFAULT_LIMITS = ChangeLimits()
