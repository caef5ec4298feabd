import pytest
import torch

from pipework.errors import CheckFailedError, ConfigError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.train.loop.determinism import float32_products
from pipework.train.loop.distributed import World
from pipework.train.run import train, train_all

ENOUGH = ("train.max_steps=60", "train.batch_size=16")


def test_each_seed_has_its_own_run_folder_and_resume_skips_complete_seeds(small, tmp_path):
    out, world = tmp_path / "runs", World.alone()
    train_all(small(*ENOUGH, "train.seeds=[3]"), out, NullProgress(), world=world, resume=False)
    before = (out / "seed-3" / "manifest.json").read_bytes()
    both = small(*ENOUGH, "train.seeds=[3, 5]")
    manifests = train_all(both, out, NullProgress(), world=world, resume=True)
    assert [manifest.identity.seed for manifest in manifests.values()] == [3, 5]
    assert (out / "seed-3" / "manifest.json").read_bytes() == before
    files = [read_manifest(out / f"seed-{seed}").model.checkpoint for seed in (3, 5)]
    assert files[0] != files[1]


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_set_before_a_run_computes_and_restored_after_it(
    small, tmp_path, monkeypatch, tf32
):
    def settings():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def prepared(*_):
        found.append(settings())
        message = "enough"
        raise ConfigError(message)

    found = []
    monkeypatch.setattr("pipework.train.run._prepared", prepared)
    with float32_products(tf32=not tf32):  # of another run
        before = settings()
        with pytest.raises(ConfigError, match="enough"):
            train(small(f"train.tf32={str(tf32).lower()}"), tmp_path / "run", NullProgress())
        assert settings() == before
    assert found == [("high" if tf32 else "highest", tf32)]


def test_the_other_seeds_are_trained_if_a_seed_learns_nothing(small, tmp_path):
    out = tmp_path / "runs"
    config = small(*ENOUGH, "train.epochs=4", "train.seeds=[3, 5]", "train.learning_rate=1e-9")
    with pytest.raises(CheckFailedError, match=r"seed 3: .*; seed 5: "):
        train_all(config, out, NullProgress(), world=World.alone(), resume=False)
    assert (out / "seed-5" / "manifest.json").exists()
