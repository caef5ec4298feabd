import json

import pytest
import torch

from pipework.errors import RunFolderError
from pipework.train.loop.determinism import random_state, restore_random, seed_everything
from pipework.train.loop.distributed import World
from pipework.train.loop.resume import CheckpointManager, TrainState, latest, restore

ALONE = World.alone()
CPU = torch.device("cpu")


class Weights(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    def save(self, folder):
        torch.save(self.state_dict(), folder / "weights")


def save_checkpoint(checkpoints, step, model=None, *, best_step=0):
    model = model or Weights()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = TrainState(step=step, best_step=best_step)
    checkpoints.save(state, model, optimizer.state_dict(), [random_state(CPU)])
    return model, optimizer


def test_the_last_checkpoints_and_their_best_weights_are_retained(tmp_path):
    checkpoints = CheckpointManager(tmp_path, keep=2)
    for step, best in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 5)):
        checkpoints.save_weights(Weights(), checkpoints.best(step)) if step == best else None
        save_checkpoint(checkpoints, step, best_step=best)
    names = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert names == ["best-00000003", "best-00000005", "step-00000004", "step-00000005"]
    assert latest(tmp_path).state.step == 5


def test_weights_optimizer_and_random_state_are_restored(tmp_path):
    seed_everything(3)
    model, optimizer = save_checkpoint(CheckpointManager(tmp_path, keep=1), 7)
    expected = torch.rand(3)
    again = Weights()
    fresh = torch.optim.AdamW(again.parameters())
    restored_random = restore(latest(tmp_path), again, fresh, ALONE)
    assert torch.equal(again.weight, model.weight)
    old, new = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert old.keys() == new.keys()
    assert all(
        torch.equal(old[index][name], new[index][name]) for index in old for name in old[index]
    )
    restore_random(restored_random, CPU)
    assert torch.equal(torch.rand(3), expected)


def test_shared_weights_are_stored_once_and_restored_shared(tmp_path):
    model = Weights()
    model.twin = model.weight
    save_checkpoint(CheckpointManager(tmp_path, keep=1), 1, model)
    again = Weights()
    again.twin = again.weight
    restore(latest(tmp_path), again, torch.optim.AdamW(again.parameters()), ALONE)
    assert torch.equal(again.weight, model.weight)
    assert again.twin is again.weight


def test_weights_of_another_model_are_refused(tmp_path):
    save_checkpoint(CheckpointManager(tmp_path, keep=1), 1)
    other = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(RunFolderError, match="does not match the model: bias"):
        restore(latest(tmp_path), other, torch.optim.AdamW(other.parameters()), ALONE)


def test_a_full_disk_leaves_the_previous_checkpoint_valid(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path, keep=1)
    model, _ = save_checkpoint(checkpoints, 1)

    def full(*_):
        message = "No space left on device"
        raise OSError(28, message)

    with monkeypatch.context() as patch:
        patch.setattr("pipework.train.loop.resume.save_file", full)
        with pytest.raises(RunFolderError, match=r"step-00000002 cannot be written: .*No space"):
            save_checkpoint(checkpoints, 2)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-00000001"]
    again = Weights()
    restore(latest(tmp_path), again, torch.optim.AdamW(again.parameters()), ALONE)
    assert torch.equal(again.weight, model.weight)


def test_a_partial_checkpoint_is_ignored(tmp_path):
    save_checkpoint(CheckpointManager(tmp_path, keep=1), 1)
    partial = tmp_path / "state" / "step-00000009.partial"
    partial.mkdir()
    (partial / "train_state.json").write_text(TrainState(step=9).model_dump_json())
    assert latest(tmp_path).state.step == 1


def test_a_missing_checkpoint_is_none_and_another_version_is_refused(tmp_path):
    assert latest(tmp_path) is None
    save_checkpoint(CheckpointManager(tmp_path, keep=1), 1)
    path = tmp_path / "state" / "step-00000001" / "train_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    with pytest.raises(RunFolderError, match="was not written by this version"):
        latest(tmp_path)
