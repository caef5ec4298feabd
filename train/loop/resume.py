"""What a run keeps in RUN/state to go on exactly where it was.

A checkpoint is a folder, written beside its place and renamed when it is whole. No pickle: tensors
are safetensors, the rest is JSON. The best weights so far lie in a folder of their own, which a
checkpoint names by its step, so that the two never disagree.
"""

import json
import os
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
from pipework.scoring.evaluation import Evaluation
from pipework.train.loop.determinism import RandomState
from pipework.train.loop.distributed import World

FOLDER = "state"
STANDING, MODEL, OPTIMIZER = "standing.json", "model.safetensors", "optimizer.safetensors"


class Standing(BaseModel):
    """Where a run stands after `step` windows of rows.

    `updates` counts the steps that changed the weights: fp16 skips some. `scaler` is that of fp16.
    `losses` are those of the log so far. `stale` counts the evaluations since the best; `owed` says
    that one is due, which a signal has cut off. `fingerprint` has digests of what is learned from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = 0
    updates: int = 0
    losses: tuple[float, ...] = ()
    best: Evaluation | None = None
    best_step: int = 0
    stale: int = 0
    owed: bool = False
    scaler: dict[str, int | float] = {}
    elapsed_s: float = 0.0
    processes: int = 1
    fingerprint: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A checkpoint as it lies on disk, open to be put back."""

    folder: Path
    standing: Standing


def latest(run: Path) -> Snapshot | None:
    """Return the newest checkpoint of a run, or None if it has none.

    Raises:
        RunFolderError: it was written by another version.
    """
    found = sorted((run / FOLDER).glob("step-*[0-9]"))
    if not found:
        return None
    text = (found[-1] / STANDING).read_bytes()
    try:
        return Snapshot(folder=found[-1], standing=Standing.model_validate_json(text))
    except ValidationError as error:
        message = f"{found[-1]} was not written by this version: {error.errors()[0]['msg']}"
        raise RunFolderError(message, "train again without --resume, into another --out") from error


class Keeper:
    """Writes the checkpoints of one run and clears those that are no longer needed."""

    def __init__(self, run: Path, keep: int) -> None:
        """Write below RUN/state and keep the last `keep` checkpoints."""
        self._folder = run / FOLDER
        self._run = run
        self._keep = keep

    def best(self, step: int) -> Path:
        """Return where the best weights lie that were found at a step."""
        return self._folder / f"best-{step:08d}"

    def save(
        self,
        standing: Standing,
        model: nn.Module,
        optimizer: Mapping[str, Any],
        random: Sequence[RandomState],
    ) -> None:
        """Write a checkpoint, then clear older ones, and best weights that none names.

        Raises:
            RunFolderError: it cannot be written; the one before it is whole.
        """
        place = self._folder / f"step-{standing.step:08d}"
        with self._whole(place) as folder:
            save_model(model, str(folder / MODEL))
            tensors, rest = _flat(optimizer)
            save_file(tensors, folder / OPTIMIZER)
            (folder / OPTIMIZER).with_suffix(".json").write_text(json.dumps(rest))
            for rank, state in enumerate(random):
                save_file(state, folder / f"random-{rank}.safetensors")
            (folder / STANDING).write_text(standing.model_dump_json())
        self._clear()

    @contextmanager
    def _whole(self, place: Path) -> Iterator[Path]:
        partial = place.with_name(f"{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            yield partial
            for path in partial.iterdir():
                _sync(path)
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
            _sync(self._folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            message = f"{place} cannot be written: {error}"
            hint = "the checkpoint before it is whole: make room, then go on with --resume"
            raise RunFolderError(message, hint) from error

    def save_best(self, model: Any, step: int) -> None:  # noqa: ANN401  (a Classifier)
        """Write the weights as `checkpoint/` has them; older ones stay until `save` clears them.

        Raises:
            RunFolderError: they cannot be written.
        """
        with self._whole(self.best(step)) as folder:
            model.save(folder)

    def _clear(self) -> None:
        steps = sorted(self._folder.glob("step-*[0-9]"))
        for old in steps[: -self._keep]:
            shutil.rmtree(old)
        texts = [(place / STANDING).read_bytes() for place in steps[-self._keep :]]
        named = {self.best(Standing.model_validate_json(text).best_step) for text in texts}
        for path in (*self._folder.glob("best-*"), *self._folder.glob("*.partial")):
            if path not in named:
                shutil.rmtree(path)


def put_back(
    snapshot: Snapshot, model: nn.Module, optimizer: torch.optim.Optimizer, world: World
) -> RandomState | None:
    """Restore weights and optimizer in every process, from the files that rank 0 reads.

    Returns:
        The state of chance of this process; None if it did not take part when it was written.
    """
    content = world.lead(lambda: _read(snapshot.folder, world.size))
    load_model_bytes(model, content.model)
    optimizer.load_state_dict(_nested(load(content.optimizer), json.loads(content.rest)))
    own = content.random[world.rank]
    return None if own is None else load(own)


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The bytes of a checkpoint's files; `random` by rank, None for one that has none."""

    model: bytes
    optimizer: bytes
    rest: str
    random: tuple[bytes | None, ...]


def _read(folder: Path, processes: int) -> _Content:
    states = [folder / f"random-{rank}.safetensors" for rank in range(processes)]
    # With another number of processes each has another share of the rows: no old stream fits.
    same = len(list(folder.glob("random-*"))) == processes
    return _Content(
        model=(folder / MODEL).read_bytes(),
        optimizer=(folder / OPTIMIZER).read_bytes(),
        rest=(folder / OPTIMIZER).with_suffix(".json").read_text(),
        random=tuple(path.read_bytes() if same else None for path in states),
    )


def load_model_bytes(model: nn.Module, content: bytes) -> None:
    """Load weights that `save_model` wrote; of shared weights it writes one."""
    missing, unexpected = model.load_state_dict(load(content), strict=False)
    known = {
        id(tensor)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if name not in missing
    }
    lost = [
        name
        for name, tensor in model.state_dict(keep_vars=True).items()
        if name in missing and id(tensor) not in known
    ]
    if lost or unexpected:
        message = f"the checkpoint does not fit the model: {(lost or unexpected)[0]}"
        raise RunFolderError(message, "it was written for another model: train again")


def _flat(state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Part an optimizer's state into tensors by `parameter.name` and what JSON can hold."""
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
