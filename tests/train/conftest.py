"""Small runs, in this process or in forked processes that can be killed."""

import os
import signal
from functools import partial

import pytest

from pipework.progress import NullProgress
from pipework.train.config.run_config import load_config
from tests.commands import FORKS, fork, rank_environments

QUICK = [
    "train.max_steps=6",
    "train.precision=fp32",
    "train.batch_size=8",
    "train.report=false",
]


@pytest.fixture(scope="session")
def config_in():
    """A function that writes a few synthetic rows and a config into a folder."""

    def make(folder, *extra, rows=40, test_rows=8):
        for name, count in (("train", rows), ("dev", 12), ("test", test_rows)):
            lines = (
                f"{'good' if n % 2 else 'bad'} thing number {n}\t{n % 2}\n" for n in range(count)
            )
            (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines))
        path = folder / "c.toml"
        path.write_text(
            '[data]\ntrain = "train.tsv"\ndev = "dev.tsv"\ntest = "test.tsv"\n'
            '[model]\npreset = "tiny"\nmax_length = 16\nvocab_size = 100\n[train]\nepochs = 30\n'
            "learning_rate = 1e-3\n"
        )
        return load_config(str(path), [*QUICK, *extra])

    return make


@pytest.fixture
def small(config_in, tmp_path):
    """A config with a few synthetic rows."""
    return partial(config_in, tmp_path)


def _member(config, out, kill_at, resume, results):
    from pipework.errors import CheckFailedError, PipeError  # noqa: PLC0415  (after the fork)
    from pipework.train.loop.distributed import join  # noqa: PLC0415
    from pipework.train.loop.step import Stepper  # noqa: PLC0415
    from pipework.train.run import train  # noqa: PLC0415

    batches, learn = 0, Stepper._loss  # noqa: SLF001

    def killed(stepper, batch):
        nonlocal batches
        batches += 1
        if batches == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return learn(stepper, batch)

    if kill_at is not None:
        Stepper._loss = killed  # noqa: SLF001
    try:
        with join() as world:
            train(config, out, NullProgress(), world=world, resume=resume)
    except CheckFailedError as error:  # complete, but too short to have learned anything
        os._exit(0 if "the run is complete" in error.hint else error.exit_code)
    except PipeError as error:
        results.put(str(error))
        os._exit(error.exit_code)
    os._exit(0)


@pytest.fixture
def forked():
    """Train in forked processes; if one fails, the others are killed, as with torchrun.

    `kill_at` sends SIGKILL to rank 0 when its batch with this number starts. Returns the exit
    codes by rank.
    """
    started = []

    def run(config, out, *, processes=1, kill_at=None, resume=False):
        results = FORKS.Queue()
        members = []
        for rank, environment in enumerate(rank_environments(processes)):
            kill = kill_at if rank == 0 else None
            members.append(fork(_member, config, out, kill, resume, results, **environment))
        started.extend(members)
        for member in members:
            member.start()
        members[0].join(600)
        for member in members[1:]:
            if members[0].exitcode != 0:
                member.kill()
            member.join(600)
        return [member.exitcode for member in members]

    yield run
    for member in started:
        member.kill()
