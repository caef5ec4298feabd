import json

import pytest
import torch

from pipework.errors import RunFolderError
from pipework.train.loop.determinism import random_state, restore_random, seed_everything
from pipework.train.loop.distributed import World
from pipework.train.loop.resume import Keeper, Standing, latest, put_back

ALONE = World.alone()
CPU = torch.device("cpu")


class Weights(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    def save(self, folder):
        torch.save(self.state_dict(), folder / "weights")


def keep(keeper, step, model=None, *, best_step=0):
    model = model or Weights()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    standing = Standing(step=step, best_step=best_step)
    keeper.save(standing, model, optimizer.state_dict(), [random_state(CPU)])
    return model, optimizer


def test_the_last_few_are_kept_and_the_best_that_they_name(tmp_path):
    keeper = Keeper(tmp_path, keep=2)
    for step, best in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 5)):
        keeper.save_best(Weights(), step) if step == best else None
        keep(keeper, step, best_step=best)
    names = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert names == ["best-00000003", "best-00000005", "step-00000004", "step-00000005"]
    assert latest(tmp_path).standing.step == 5


def test_weights_optimizer_and_chance_come_back(tmp_path):
    seed_everything(3)
    model, optimizer = keep(Keeper(tmp_path, keep=1), 7)
    expected = torch.rand(3)
    again = Weights()
    fresh = torch.optim.AdamW(again.parameters())
    own = put_back(latest(tmp_path), again, fresh, ALONE)
    assert torch.equal(again.weight, model.weight)
    old, new = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert old.keys() == new.keys()
    assert all(torch.equal(old[one][name], new[one][name]) for one in old for name in old[one])
    restore_random(own, CPU)
    assert torch.equal(torch.rand(3), expected)


def test_shared_weights_are_kept_once_and_come_back_shared(tmp_path):
    model = Weights()
    model.twin = model.weight
    keep(Keeper(tmp_path, keep=1), 1, model)
    again = Weights()
    again.twin = again.weight
    put_back(latest(tmp_path), again, torch.optim.AdamW(again.parameters()), ALONE)
    assert torch.equal(again.weight, model.weight)
    assert again.twin is again.weight


def test_weights_of_another_model_are_refused(tmp_path):
    keep(Keeper(tmp_path, keep=1), 1)
    other = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(RunFolderError, match="does not fit the model: bias"):
        put_back(latest(tmp_path), other, torch.optim.AdamW(other.parameters()), ALONE)


def test_a_disk_that_is_full_leaves_the_checkpoint_before_whole(tmp_path, monkeypatch):
    keeper = Keeper(tmp_path, keep=1)
    model, _ = keep(keeper, 1)

    def full(*_):
        message = "No space left on device"
        raise OSError(28, message)

    with monkeypatch.context() as patch:
        patch.setattr("pipework.train.loop.resume.save_file", full)
        with pytest.raises(RunFolderError, match=r"step-00000002 cannot be written: .*No space"):
            keep(keeper, 2)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-00000001"]
    again = Weights()
    put_back(latest(tmp_path), again, torch.optim.AdamW(again.parameters()), ALONE)
    assert torch.equal(again.weight, model.weight)


def test_a_half_written_checkpoint_is_never_taken(tmp_path):
    keep(Keeper(tmp_path, keep=1), 1)
    partial = tmp_path / "state" / "step-00000009.partial"
    partial.mkdir()
    (partial / "standing.json").write_text(Standing(step=9).model_dump_json())
    assert latest(tmp_path).standing.step == 1


def test_no_checkpoint_is_none_and_another_version_is_told(tmp_path):
    assert latest(tmp_path) is None
    keep(Keeper(tmp_path, keep=1), 1)
    path = tmp_path / "state" / "step-00000001" / "standing.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    with pytest.raises(RunFolderError, match="was not written by this version"):
        latest(tmp_path)
