"""One small trained run, shared by all tests that read a run folder."""

import fcntl
import gc
import os
import shutil
import signal
import socket
import tempfile
from functools import cache
from pathlib import Path

import httpx._transports.default as httpx_transport
import pytest
import typer.main

from pipework.machine import cpu_limit
from pipework.progress import NullProgress

os.environ["PIPEWORK_CACHE"] = tempfile.mkdtemp(prefix="pipework-cache-")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_MODULES_CACHE"] = f"{os.environ['PIPEWORK_CACHE']}/modules"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models, and machines that are shared
gc.disable()  # while the modules of all tests are imported
# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
TESTS = Path(__file__).parent
SHARED = TESTS.parents[1] / "shared" / "data"
SHORT, WAITING = {TESTS / "pipework"}, {TESTS / "benchmarks", TESTS / "serve"}
new_ssl_context = httpx_transport.create_ssl_context


@cache
def shared_ssl_context(_cert_file, **settings):
    return new_ssl_context(**settings)


# Each call of `pipe` would create all commands again: 3 ms of CPU time.
typer.main.get_command = cache(typer.main.get_command)
# Each client of httpx, also one for http://, would load all certificates: 20 ms of CPU time.
httpx_transport.create_ssl_context = lambda **settings: shared_ssl_context(
    os.environ.get("SSL_CERT_FILE"), **settings
)


def pytest_xdist_auto_num_workers():
    """Return more processes than processors: a third of the time of the tests is waiting."""
    return round(1.5 * cpu_limit())


def pytest_configure():
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.commands import start_fork_server  # noqa: PLC0415  (in parallel processes only)

        start_fork_server()


def pytest_collection_modifyitems(items):
    """Order the files so that parallel processes use all processors and end at the same time.

    Tests that wait most of the time are spread over those that compute; short files are the last.
    """
    if names := os.environ.get("AGAIN"):  # the tests that another run has skipped
        again = set(Path(names).read_text(encoding="utf-8").splitlines())
        for item in items:
            found = {item.nodeid, item.nodeid.partition("::")[0]} & again  # a test, or its file
            if found:
                item.add_marker("thorough")
            again -= {item.nodeid}
        unknown = again - {item.nodeid.partition("::")[0] for item in items}
        if unknown:
            message = f"{names} has tests that do not exist: {sorted(unknown)}"
            raise pytest.UsageError(message)
    # Reversed: the tests of train/ come first, and need no run that another process is making.
    paths = list(dict.fromkeys(item.path for item in items))[::-1]
    short = [path for path in paths if SHORT & {*path.parents}]
    waiting = [path for path in paths if WAITING & {*path.parents}]
    computing = [path for path in paths if path not in {*short, *waiting}]
    ranks = dict.fromkeys(short, 1.0)
    for group in waiting, computing:
        ranks |= {path: number / len(group) for number, path in enumerate(group)}
    items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish():
    gc.freeze()  # a collection that searches all imported modules takes seconds
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or item.path != nextitem.path:
        gc.collect()
        gc.freeze()  # the modules that the tests of this file have imported


def pytest_runtest_logreport(report):
    """Add a skipped test to the file that `.ci/run` names: it runs them again with all programs."""
    names = os.environ.get("SKIPPED_TESTS")
    if report.skipped and names and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(names).open("a", encoding="utf-8") as stream:
            stream.write(report.nodeid + "\n")


def pytest_unconfigure():
    shutil.rmtree(os.environ["PIPEWORK_CACHE"], ignore_errors=True)


@pytest.fixture
def closed_port():
    """A port that refuses connections. It stays bound, so that no other process listens on it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Noting(NullProgress):
    """Records the notes."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.fixture
def noting() -> Noting:
    return Noting()


@pytest.fixture(scope="module")
def browser():
    """Chromium with the driver of playwright."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (few tests use it)

    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is absent: apt-get install chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the real data are absent: put a folder shared/data beside the checkout")
    return SHARED


@pytest.fixture(scope="session")
def cluster_python() -> str:
    """The Python of an environment with Ray, Spark, Dask, s3fs and moto."""
    environment = TESTS.parent / ".cluster"
    if not (environment / "ready").is_file():
        pytest.skip("Ray, Spark, Dask and s3fs are absent: run make cluster")
    return str(environment / "venv/bin/python")


def made_once(factory, name, make):
    """Return a folder that one of pytest's parallel processes makes for all of them."""
    own = factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = common / name
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = factory.mktemp("unfinished") / name
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """A run of a few steps on the sample; read it only."""
    from pipework.train.config.run_config import load_config  # noqa: PLC0415  (the environment is set first)
    from pipework.train.run import train  # noqa: PLC0415

    def make(run):
        overrides = [
            "train.epochs=3",
            "train.batch_size=16",
            "train.precision=fp32",
            "train.token_dropout=0",
        ]
        train(load_config("sample", overrides), run, NullProgress())

    return made_once(tmp_path_factory, "trained", make)


@pytest.fixture(scope="session")
def exported_run(trained_run, tmp_path_factory) -> Path:
    """The same run with a proven engine; read it only."""
    from pipework.export.config import ExportSettings  # noqa: PLC0415
    from pipework.export.run import export  # noqa: PLC0415

    def make(run):
        shutil.copytree(trained_run, run)
        export(run, NullProgress(), settings=ExportSettings(speed_s=0.2))

    return made_once(tmp_path_factory, "exported", make)


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    """A copy of the trained run, to be changed."""
    copy = tmp_path / "run"
    shutil.copytree(trained_run, copy)
    return copy


@pytest.fixture
def proven(exported_run, tmp_path) -> Path:
    """A copy of the exported run, to be changed."""
    copy = tmp_path / "proven"
    shutil.copytree(exported_run, copy)
    return copy
