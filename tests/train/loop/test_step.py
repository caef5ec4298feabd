"""The result of a step does not depend on how its rows are split into batches."""

import re
import shutil
import sysconfig
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributed

from pipework.errors import CheckFailedError, ConfigError
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.train import TrainSettings
from pipework.train.data.batches import rank_share
from pipework.train.loop.distributed import World, join
from pipework.train.loop.losses import label_losses
from pipework.train.loop.optim import schedule
from pipework.train.loop.step import Stepper, StepSpec, check_compiler
from pipework.train.objectives import OBJECTIVES
from tests.commands import FORKS, fork, rank_environments

ROWS = 8
# AdamW and clipping would hide a wrong scale of the gradient; plain SGD does not.
BARE = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 1e9}
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 0.01}


class SyntheticRows:
    """Synthetic rows for a linear model."""

    def __init__(self, factor=1.0):
        random = np.random.default_rng(0)
        self._x = torch.tensor(random.normal(size=(ROWS, 6)) * factor, dtype=torch.float32)
        self.truth_N = random.integers(0, 3, ROWS).astype(np.int32)
        self.lengths = np.full(ROWS, 4)

    def inputs(self, rows_B):
        return {"input": self._x[rows_B]}


def stepper(world, loader=None, **changes):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    settings = TrainSettings(**{"precision": "fp32", "learning_rate": 0.1, "warmup": 0, **changes})
    loader = loader or SyntheticRows()
    losses = label_losses(OBJECTIVES[SingleLabelTask], loader.truth_N)
    spec = StepSpec(model=model, layers=[[*model.parameters()]], loader=loader, losses=losses)
    return model, Stepper(spec, settings, schedule(settings, 10, 5), world)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def after(windows, world=None, **changes):
    model, trainer = stepper(world or World.alone(), **changes)
    losses = [float(trainer.step([np.array(batch) for batch in window]).loss) for window in windows]
    return weights(model), losses


WHOLE = [[list(range(ROWS))], [list(range(5))]]


@pytest.mark.parametrize(
    "cut",
    [
        [[[row] for row in range(ROWS)], [[row] for row in range(5)]],
        [[[0, 1, 2], [3, 4, 5], [6, 7]], [[0, 1, 2, 3], [4]]],  # batches differ in rows
    ],
    ids=["one row a batch", "uneven batches"],
)
def test_the_split_into_batches_does_not_change_a_step(cut):
    expected, losses = after(WHOLE, **BARE)
    split_weights, split_losses = after(cut, **BARE)
    torch.testing.assert_close(split_weights, expected, atol=1e-6, rtol=0)
    assert split_losses == pytest.approx(losses, abs=1e-6)


def member(windows, changes, results):
    with join() as world:
        trained_weights, losses = after(windows, world, **changes)
        # A tensor would stay in the memory of this process.
        results.put((world.rank, trained_weights.numpy(), losses))


def together(processes, windows, **changes):
    """Run the steps in forked processes; return the weights and partial losses of each."""
    results = FORKS.Queue()
    members = [
        fork(member, windows, changes, results, **environment)
        for environment in rank_environments(processes)
    ]
    for process in members:
        process.start()
    results = sorted((results.get(timeout=300) for _ in members), key=lambda result: result[0])
    for process in members:
        process.join(300)
    return results


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    "windows",
    [
        WHOLE,
        [
            [[0, 1, 2], [3, 4, 5], [6, 7]],
            [[0, 1, 2, 3], [4]],
        ],  # some processes have no row of a batch
    ],
    ids=["one batch", "a window"],
)
def test_the_number_of_processes_does_not_change_a_step(processes, windows):
    expected, losses = after(windows, **BARE)
    results = together(processes, windows, **BARE)
    for _, rank_weights, _ in results:
        np.testing.assert_allclose(rank_weights, expected, atol=1e-5, rtol=0)
    parts = [sum(step) for step in zip(*(losses for _, _, losses in results), strict=True)]
    assert parts == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def test_a_backend_exchanges_the_gradients(backend, tmp_path):
    """As the only process, the first of two learns its own rows."""
    if backend == "nccl" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    world = World.alone()
    rows = rank_share(np.arange(ROWS), 0, 2).tolist()
    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group(backend, init_method=store, rank=0, world_size=1)
    try:
        with world.device:
            expected, _ = after([[rows]], world, **BARE)
            found, _ = after([[list(range(ROWS))]], replace(world, size=2), **BARE)
    finally:
        distributed.destroy_process_group()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_the_gradient_is_clipped_after_it_is_unscaled():
    """With a scale of 65,536 a gradient that is clipped before would become 0."""
    window = [np.arange(ROWS)]
    model, plain = stepper(World.alone(), **PLAIN)
    plain.step(window)
    half_model, half = stepper(World.alone(), precision="fp16", **PLAIN)
    assert half.step(window).updated
    torch.testing.assert_close(weights(half_model), weights(model), atol=2e-5, rtol=0)
    moved = float((weights(half_model) - weights(stepper(World.alone())[0])).norm())
    assert moved == pytest.approx(0.1 * 0.01, rel=0.05)  # rate times clip


def test_skipped_fp16_steps_do_not_advance_the_schedule():
    model, trainer = stepper(
        World.alone(), SyntheticRows(factor=100), precision="fp16", schedule="linear"
    )
    before, rate = weights(model), trainer.rate
    skipped = 0
    while not trainer.step([np.arange(ROWS)]).updated:
        skipped += 1
        assert trainer.updates == 0
        assert trainer.rate == rate
        assert torch.equal(weights(model), before)
    assert skipped > 0
    assert trainer.updates == 1
    assert trainer.rate < rate


def test_the_scale_is_read_once_per_step(monkeypatch):
    """To read it waits for the GPU."""
    _, trainer = stepper(World.alone(), precision="fp16")
    trainer.step([np.arange(ROWS)])
    reads, get_scale = [], trainer.scaler.get_scale
    monkeypatch.setattr(trainer.scaler, "get_scale", lambda: reads.append(1) or get_scale())
    for _ in range(3):
        trainer.step([np.arange(ROWS)])
    assert len(reads) == 3


def test_a_permanent_fp16_overflow_is_reported():
    _, trainer = stepper(World.alone(), SyntheticRows(factor=1e6), precision="fp16")
    for _ in range(29):
        assert not trainer.step([np.arange(ROWS)]).updated
    with pytest.raises(CheckFailedError, match="overflowed float16 in 30 steps in a row") as error:
        trainer.step([np.arange(ROWS)])
    assert "bf16" in error.value.hint


def test_a_constant_loss_scale_does_not_change_after_steps_and_overflows():
    _, trainer = stepper(World.alone(), precision="fp16", loss_scale=128.0)
    trainer.scaler.set_growth_interval(1)
    updated = [trainer.step([np.arange(ROWS)]).updated for _ in range(3)]
    assert (updated, trainer.scaler.get_scale()) == ([True] * 3, 128)

    _, trainer = stepper(World.alone(), SyntheticRows(factor=100), precision="fp16", loss_scale=1e6)
    for _ in range(29):
        assert not trainer.step([np.arange(ROWS)]).updated
        assert trainer.scaler.get_scale() == 1e6
    with pytest.raises(CheckFailedError, match="overflowed float16") as error:
        trainer.step([np.arange(ROWS)])
    assert "lower train.loss_scale (now 1e+06)" in error.value.hint


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own modules
def test_a_compiled_model_gives_the_same_step():
    if shutil.which("g++") is None:
        pytest.skip("g++ is absent: apt-get install g++")
    expected, _ = after(WHOLE)
    results, _ = after(WHOLE, compile=True)
    torch.testing.assert_close(results, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("device", "message", "hint"),
    [
        ("cpu", "needs the compiler g++", "install g++, set CXX to another one"),
        ("cuda", "needs the compiler gcc or clang", "install gcc or clang, set CC to another"),
    ],
)
def test_a_missing_compiler_is_reported_before_the_first_step(monkeypatch, device, message, hint):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        check_compiler(device)
    assert hint in error.value.hint
    with pytest.raises(ConfigError):
        stepper(World.alone(), compile=True)


def test_any_of_the_default_compilers_is_enough(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "clang").touch(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    check_compiler("cuda")


@pytest.mark.parametrize(("device", "compiler"), [("cpu", "g++"), ("cuda", "gcc")])
def test_missing_headers_of_python_are_reported(monkeypatch, tmp_path, device, compiler):
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / compiler).touch(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    header = f"train.compile = true needs {tmp_path / 'Python.h'}, which is not installed"
    with pytest.raises(ConfigError, match=re.escape(header)) as error:
        check_compiler(device)
    assert "set train.compile = false" in error.value.hint


def test_an_optimizer_on_the_cpu_gives_the_same_steps():
    expected, _ = after(WHOLE)
    results, _ = after(WHOLE, optimizer_on_cpu=True)
    assert torch.equal(results, expected)
