"""Checkpoints in RUN/state, from which a run resumes exactly where it stopped.

A checkpoint is a folder that is written under a temporary name and renamed when it is complete.
Tensors are stored as safetensors and the rest as JSON; there is no pickle. The best weights are in
a separate folder, which the checkpoint refers to by its step, so the two are always consistent.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save_file, save_model
from torch import nn

from pipework.errors import RunFolderError
from pipework.run_folder.files import sync
from pipework.tasks.evaluation import Evaluation
from pipework.train.loop.determinism import RandomState
from pipework.train.loop.distributed import World
from pipework.train.model.checkpoint import STEPS, kept_name

FOLDER = "state"
TRAIN_STATE, MODEL, OPTIMIZER = "train_state.json", "model.safetensors", "optimizer.safetensors"


class TrainState(BaseModel):
    """The state of a run after `step` steps.

    Attributes:
        step: number of steps done.
        updates: number of steps that changed the weights; fp16 skips steps that overflow.
        losses: the training losses logged so far.
        best: the best evaluation so far.
        best_step: its step.
        evals_without_gain: number of evaluations since the best.
        evaluation_due: whether a signal stopped the run before a scheduled evaluation.
        scaler: the state of the fp16 gradient scaler.
        elapsed_s: seconds since the start of the run.
        processes: number of processes.
        fingerprint: digests of the data by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = 0
    updates: int = 0
    losses: tuple[float, ...] = ()
    best: Evaluation | None = None
    best_step: int = 0
    evals_without_gain: int = 0
    evaluation_due: bool = False
    scaler: dict[str, int | float] = {}
    elapsed_s: float = 0.0
    processes: int = 1
    fingerprint: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A checkpoint on disk, with its state already read."""

    folder: Path
    state: TrainState


def latest(run: Path) -> Snapshot | None:
    """Return the newest checkpoint of a run, or None if it has none.

    Raises:
        RunFolderError: the checkpoint was written by another version.
    """
    folders = sorted((run / FOLDER).glob("step-*[0-9]"))
    if not folders:
        return None
    text = (folders[-1] / TRAIN_STATE).read_bytes()
    try:
        return Snapshot(folder=folders[-1], state=TrainState.model_validate_json(text))
    except ValidationError as error:
        message = f"{folders[-1]} was not written by this version: {error.errors()[0]['msg']}"
        raise RunFolderError(message, "train again without --resume, with another --out") from error


class CheckpointManager:
    """Writes the checkpoints of a run and deletes those that are no longer needed."""

    def __init__(self, run: Path, keep: int) -> None:
        """Write to RUN/state and keep the last `keep` checkpoints."""
        self._folder = run / FOLDER
        self._run = run
        self._keep = keep

    def best(self, step: int) -> Path:
        """Return the folder of the best weights of a step; `save` deletes older ones."""
        return self._folder / f"best-{step:08d}"

    def kept(self, step: int) -> Path:
        """Return the folder of the weights of a step that remain when the run is complete."""
        return self._run / STEPS / kept_name(step)

    def save(
        self,
        state: TrainState,
        model: nn.Module,
        optimizer: Mapping[str, Any],
        random: Sequence[RandomState],
    ) -> None:
        """Write a checkpoint, then delete older checkpoints and unreferenced best weights.

        Raises:
            RunFolderError: it cannot be written; the previous checkpoint is still valid.
        """
        target = self._folder / f"step-{state.step:08d}"
        with self._atomic_folder(target) as folder:
            save_model(model, str(folder / MODEL))
            tensors, rest = _flat(optimizer)
            save_file(tensors, folder / OPTIMIZER)
            (folder / OPTIMIZER).with_suffix(".json").write_text(json.dumps(rest))
            for rank, random_state in enumerate(random):
                save_file(random_state, folder / f"random-{rank}.safetensors")
            (folder / TRAIN_STATE).write_text(state.model_dump_json())
        self._clear()

    @contextmanager
    def _atomic_folder(self, target: Path) -> Iterator[Path]:
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            yield partial
            for path in partial.iterdir():
                sync(path)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            sync(target.parent)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            message = f"{target} cannot be written: {error}"
            hint = "the previous checkpoint is valid: free disk space, then use --resume"
            raise RunFolderError(message, hint) from error

    def save_weights(self, model: Any, target: Path) -> None:  # noqa: ANN401  (a Classifier)
        """Write weights to the folder `best` or `kept`, in the format of `checkpoint/`.

        Raises:
            RunFolderError: they cannot be written.
        """
        with self._atomic_folder(target) as folder:
            model.save(folder)

    def _clear(self) -> None:
        steps = sorted(self._folder.glob("step-*[0-9]"))
        for old in steps[: -self._keep]:
            shutil.rmtree(old)
        states = [(target / TRAIN_STATE).read_bytes() for target in steps[-self._keep :]]
        referenced = {self.best(TrainState.model_validate_json(text).best_step) for text in states}
        for path in (*self._folder.glob("best-*"), *self._folder.glob("*.partial")):
            if path not in referenced:
                shutil.rmtree(path)


def restore(
    snapshot: Snapshot, model: nn.Module, optimizer: torch.optim.Optimizer, world: World
) -> RandomState | None:
    """Restore weights and optimizer in every process; rank 0 reads the files.

    Returns:
        The random state of this process; None if the number of processes has changed.

    Raises:
        RunFolderError: a file is missing or damaged, or does not match the model.
    """
    content = world.lead(lambda: _read(snapshot.folder, world.size))
    try:
        load_model_bytes(model, content.model)
        optimizer.load_state_dict(_nested(load(content.optimizer), json.loads(content.rest)))
        own = content.random[world.rank]
        return None if own is None else load(own)
    except (SafetensorError, LookupError, ValueError) as error:
        message = f"{snapshot.folder} is damaged: {error}"
        raise RunFolderError(message, "train again without --resume") from error


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The bytes of the files of a checkpoint; `random` by rank, None without a random state."""

    model: bytes
    optimizer: bytes
    rest: str
    random: tuple[bytes | None, ...]


def _read(folder: Path, processes: int) -> _Content:
    states = [folder / f"random-{rank}.safetensors" for rank in range(processes)]
    # With another number of processes each rank has other rows: stored random states do not apply.
    same = len(list(folder.glob("random-*"))) == processes
    return _Content(
        model=(folder / MODEL).read_bytes(),
        optimizer=(folder / OPTIMIZER).read_bytes(),
        rest=(folder / OPTIMIZER).with_suffix(".json").read_text(),
        random=tuple(path.read_bytes() if same else None for path in states),
    )


def load_model_bytes(model: nn.Module, content: bytes) -> None:
    """Load weights that `save_model` wrote; it writes shared weights only once."""
    missing, unexpected = model.load_state_dict(load(content), strict=False)
    weights = model.state_dict(keep_vars=True).items()
    loaded = {id(tensor) for name, tensor in weights if name not in missing}
    lost = [name for name, tensor in weights if name in missing and id(tensor) not in loaded]
    if lost or unexpected:
        message = f"the checkpoint does not match the model: {(lost or unexpected)[0]}"
        raise RunFolderError(message, "it was written for another model: train again")


def _flat(state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split the state of an optimizer into tensors by `parameter.name` and JSON values."""
    tensors: dict[str, torch.Tensor] = {}
    rest: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value.contiguous()
            else:
                rest.setdefault(str(index), {})[name] = value
    return tensors, {"state": rest, "param_groups": state["param_groups"]}


def _nested(tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(i): dict(v) for i, v in rest["state"].items()}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    return {"state": state, "param_groups": rest["param_groups"]}
