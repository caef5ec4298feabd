"""One step is the same however its rows are cut."""

import multiprocessing
import os
import socket

import numpy as np
import pytest
import torch

from pipework.errors import CheckFailedError
from pipework.run_folder.task import TaskKind
from pipework.train.config.train import TrainSettings
from pipework.train.loop.distributed import World, join
from pipework.train.loop.losses import HardLabels, Objective
from pipework.train.loop.schedule import schedule
from pipework.train.loop.step import Stepper

ROWS = 8
# AdamW and clipping hide a gradient that is too large or too small; this does not.
BARE = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 1e9}
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 0.01}


class MadeUp:
    """Rows of made-up numbers for a linear model."""

    def __init__(self, factor=1.0):
        random = np.random.default_rng(0)
        self._x = torch.tensor(random.normal(size=(ROWS, 6)) * factor, dtype=torch.float32)
        self.truth_N = random.integers(0, 3, ROWS).astype(np.int32)
        self.lengths = np.full(ROWS, 4)

    def inputs(self, rows_B):
        return {"input": self._x[rows_B]}


def stepper(world, feed=None, **given):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    settings = TrainSettings(**{"precision": "fp32", "learning_rate": 0.1, "warmup": 0, **given})
    groups = [
        {"params": list(model.parameters()), "weight_decay": settings.weight_decay, "scale": 1.0}
    ]
    feed = feed or MadeUp()
    losses = HardLabels(Objective(TaskKind.SINGLE_LABEL), feed.truth_N)
    return model, Stepper(
        model,
        groups,
        settings,
        feed=feed,
        losses=losses,
        schedule=schedule(settings, 10, 5),
        world=world,
    )


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def after(windows, world=None, **given):
    model, one = stepper(world or World.alone(), **given)
    losses = [float(one.take([np.array(batch) for batch in window]).loss) for window in windows]
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
def test_any_batches_of_a_window_equal_one_batch(cut):
    expected, losses = after(WHOLE, **BARE)
    found, theirs = after(cut, **BARE)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert theirs == pytest.approx(losses, abs=1e-6)


def member(place, windows, given, results):
    os.environ.update(place)
    with join() as world:
        weighs, losses = after(windows, world, **given)
        results.put((world.rank, weighs.numpy(), losses))  # a tensor would live in this process


def together(processes, windows, **given):
    """Take the steps in forked processes; return each one's weights and parts of the losses."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    members = [
        context.Process(
            target=member,
            args=(
                {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(processes)}
                | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                windows,
                given,
                results,
            ),
        )
        for r in range(processes)
    ]
    for one in members:
        one.start()
    found = sorted((results.get(timeout=300) for _ in members), key=lambda one: one[0])
    for one in members:
        one.join(300)
    return found


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    "windows",
    [
        WHOLE,
        [[[0, 1, 2], [3, 4, 5], [6, 7]], [[0, 1, 2, 3], [4]]],  # some take no row of a batch
    ],
    ids=["one batch", "a window"],
)
def test_several_processes_equal_one(processes, windows):
    expected, losses = after(windows, **BARE)
    found = together(processes, windows, **BARE)
    for _, theirs, _ in found:
        np.testing.assert_allclose(theirs, expected, atol=1e-5, rtol=0)
    parts = [sum(step) for step in zip(*(losses for _, _, losses in found), strict=True)]
    assert parts == pytest.approx(losses, abs=1e-5)


def test_the_gradient_is_clipped_after_it_is_unscaled():
    """With a scale of 65,536 a gradient clipped before would end as nothing."""
    window = [np.arange(ROWS)]
    model, plain = stepper(World.alone(), **PLAIN)
    plain.take(window)
    half_model, half = stepper(World.alone(), precision="fp16", **PLAIN)
    assert half.take(window).updated
    torch.testing.assert_close(weights(half_model), weights(model), atol=2e-5, rtol=0)
    moved = float((weights(half_model) - weights(stepper(World.alone())[0])).norm())
    assert moved == pytest.approx(0.1 * 0.01, rel=0.05)  # rate times clip


def test_the_schedule_stands_still_while_fp16_skips():
    model, one = stepper(World.alone(), MadeUp(factor=100), precision="fp16", schedule="linear")
    before, rate = weights(model), one.rate
    skipped = 0
    while not one.take([np.arange(ROWS)]).updated:
        skipped += 1
        assert one.updates == 0
        assert one.rate == rate
        assert torch.equal(weights(model), before)
    assert skipped > 0
    assert one.updates == 1
    assert one.rate < rate


def test_a_loss_that_overflows_for_ever_ends_with_the_reason():
    _, one = stepper(World.alone(), MadeUp(factor=1e6), precision="fp16")
    for _ in range(29):
        assert not one.take([np.arange(ROWS)]).updated
    with pytest.raises(CheckFailedError, match="overflowed float16 in 30 steps in a row") as error:
        one.take([np.arange(ROWS)])
    assert "bf16" in error.value.hint


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own modules
def test_a_compiled_model_takes_the_same_step():
    expected, _ = after(WHOLE)
    found, _ = after(WHOLE, compile=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_an_optimizer_on_the_cpu_takes_the_same_steps():
    expected, _ = after(WHOLE)
    found, _ = after(WHOLE, optimizer_on_cpu=True)
    assert torch.equal(found, expected)
