"""Set windows over long texts, and compare the scores on dev with those of truncated texts.

Shapes: N texts.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.kept_rows import sample_evenly
from pipework.data.splits import split_source
from pipework.errors import ConfigError
from pipework.export.config import ExportSettings, WindowJoin
from pipework.export.inference import open_model
from pipework.progress import Progress, counted
from pipework.run_folder.manifest import LockedRun, Manifest
from pipework.scoring.bootstrap import TaskOutputs, paired_interval
from pipework.scoring.evaluation import infer_all, label_array
from pipework.tasks.heads import HeadsTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.tasks.windows import Join, Windows
from pipework.text.encoding import all_windows, open_encoder


def set_windows(locked: LockedRun, settings: ExportSettings, progress: Progress) -> None:
    """Set the windows of `settings.windows` in the locked manifest; `join = "first"` removes them.

    The checkpoint scores dev, with the windows and with truncated texts.

    Raises:
        ConfigError: the model does not read a single text, the windows share too many tokens, or a
            decision was chosen without these windows.
    """
    manifest = locked.manifest
    chosen = settings.windows
    windows = None
    if chosen.join is not WindowJoin.FIRST:
        windows = Windows(stride=chosen.stride or 0, join=Join(chosen.join))
    if windows == manifest.windows:
        return
    if (manifest.decision or manifest.task.min_scores) and not settings.decision.given:
        message = "the scores that give a label were chosen without these windows"
        hint = "set decision.* again in the same command, or decision.min_score=0"
        raise ConfigError(message, hint)
    if manifest.task.rows_per_token and "join" in chosen.model_fields_set and windows is not None:
        message = f"windows.join={chosen.join} is for one label of each text, not for spans"
        raise ConfigError(message, "leave it out: each token has its tag from one window")
    if windows is not None and isinstance(manifest.task, HeadsTask):
        message = f"{locked.folder} has several heads, which read no windows"
        raise ConfigError(message, "export without windows.*")
    if windows is not None:
        _compare(locked.folder, manifest, windows, settings.dev_rows, progress)
    locked.set_windows(windows)


def _compare(
    run: Path, manifest: Manifest, windows: Windows, most: int, progress: Progress
) -> None:
    """Note the share of long dev texts, their windows, and how the score changes.

    Raises:
        ConfigError: the model cannot read these windows.
    """
    if not manifest.may_have_windows:
        message = f"{run} does not read single texts: windows are not supported"
        raise ConfigError(message, "leave out windows.*")
    encoder = open_encoder(run, manifest)
    if "dev" not in manifest.data.splits:
        encoder.encode_windows([], windows)  # checks the stride
        return
    source = split_source(run, manifest, "dev")
    rows = sample_evenly(source.rows(), manifest.data.splits["dev"].rows, most)
    examples = [*rows.values()]
    inputs, offsets = all_windows(encoder.encode_windows(examples, windows))
    length = counted(manifest.input.max_length, "token")
    if offsets is None:
        progress.note(f"windows: no text of dev is longer than {length}")
        return
    counts_N = np.diff(offsets)
    longer_N = counts_N[counts_N > 1]
    line = (
        f"windows: {len(longer_N) / len(counts_N):.1%} of the dev texts are longer than {length}: "
        f"{longer_N.mean():.1f} windows each on average, {counts_N.mean():.2f} for all texts"
    )
    if manifest.data.reading.label is not None:
        task = manifest.task
        where = str(source.path)
        truth_N = label_array(examples, task, where, encoder)
        whole_N = label_array(examples, task, where, encoder, windows)
        with open_model(run, manifest, checkpoint=True) as checkpoint:
            outputs = infer_all(checkpoint, inputs, progress, "windows")
        whole = windows.joined(outputs.grouped(offsets), task)
        truncated = outputs.take(offsets[1:] - 1 if encoder.keeps_end else offsets[:-1])
        line += (
            f"; {task.metric} {task.evaluate(truncated, truth_N).score:.4f} with truncated texts, "
            f"{task.evaluate(whole, whole_N).score:.4f} with windows"
        )
        if not task.rows_per_token:  # tokens have other labels in windows
            line += f" ({_change(task, truncated, whole, truth_N)})"
    progress.note(line)


def _change(task: Task, truncated: Outputs, whole: Outputs, truth_N: NDArray[np.generic]) -> str:
    """Return the interval of the change of the score, as text."""
    before, after = (TaskOutputs(outputs=one, task=task) for one in (truncated, whole))
    interval = paired_interval(before, after, truth_N)
    return f"change {interval.low:+.4f} to {interval.high:+.4f}"
