import errno
import fcntl
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipework.errors import NotReadyError
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.config import ServeSettings
from pipework.serve.models.leases import Entry, State
from pipework.serve.models.repository import NEWEST, Policy
from pipework.serve.scheduling.predictor import served_digest
from pipework.serve.workers import engine_mirror
from pipework.serve.workers.engine_mirror import EngineMirror
from pipework.serve.workers.messages import ModelsState, VersionState
from pipework.serve.workers.shared_memory import EngineSlots, SharedMemory


class Engines:
    """Two engine processes, whose states a front process applies."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.run = run
        self.record = read_manifest(run).engines[0]
        self.memory = SharedMemory(1, 2)
        self.slots = [EngineSlots(self.memory, engine) for engine in range(2)]
        self.mirror = EngineMirror(self.memory, 0, folder, ServeSettings())

    def open(self, engine: int, version: str = "1", run: Path | None = None) -> VersionState:
        """Return the state of a version that an engine process opens now."""
        manifest = read_manifest(run or self.run)
        digest = served_digest(manifest, manifest.engines[0])
        slot, opening = self.slots[engine].take(f"topics/{version}/{digest}")
        return VersionState(
            slot=slot,
            opening=opening,
            name="topics",
            version=version,
            run=str(run or self.run),
            engine=self.record.name,
            digest=digest,
        )

    def apply(
        self,
        engine: int,
        *versions: VersionState,
        entries: tuple[Entry, ...] = (),
        replaced: bool = False,
    ) -> None:
        state = ModelsState(versions=versions, entries=entries)
        assert self.mirror.apply(engine, state, replaced=replaced) == []

    @property
    def served(self) -> list[str]:
        return [model.version for model in self.mirror.leases.serving()]


@pytest.fixture
def engines(run: Path, tmp_path: Path) -> Iterator[Engines]:
    engines = Engines(run, tmp_path)
    yield engines
    engines.mirror.close()


def test_a_version_is_served_while_an_engine_process_has_it(engines):
    first, second = engines.open(0), engines.open(1)
    engines.apply(0, first)
    engines.apply(1)
    assert engines.served == ["1"]
    model = engines.mirror.leases.find("topics", "1")
    engines.apply(1, second)
    assert engines.mirror.leases.find("topics", "1") is model
    assert engines.mirror.openings(0) == [first.opening]
    assert engines.mirror.openings(1) == [second.opening]
    lease = engines.mirror.leases.acquire("topics", "1")  # of a request
    engines.apply(0)
    assert engines.served == ["1"]
    assert engines.mirror.openings(0) == [first.opening]
    engines.mirror.leases.release(lease)
    engines.mirror.leases.wait_drained("topics")  # else process 0 could not close its opening
    assert engines.mirror.openings(0) == []
    assert engines.mirror.openings(1) == [second.opening]
    engines.apply(1)
    engines.mirror.leases.wait_drained("topics")
    assert (engines.served, engines.mirror.openings(1)) == ([], [])


def test_a_version_whose_folder_is_deleted_is_served_until_all_engine_processes_close_it(
    engines, tmp_path, caplog
):
    run = Path(shutil.copytree(engines.run, tmp_path / "run"))
    engines.apply(0, engines.open(0, run=run))
    engines.apply(1, second := engines.open(1, run=run))
    shutil.rmtree(run)
    engines.apply(0)
    engines.mirror.leases.wait_drained("topics")
    assert (engines.served, engines.mirror.openings(1)) == (["1"], [second.opening])
    assert caplog.text == ""


def test_counts_stay_when_an_engine_process_closes_the_version(engines):
    engines.apply(0, engines.open(0))
    engines.apply(1, engines.open(1))
    engines.mirror.leases.find("topics", "1").scheduler.statistics.record_failure(1.0)
    engines.apply(0)
    engines.mirror.leases.wait_drained("topics")
    assert engines.mirror.leases.find("topics", "1").totals.failed == 1


def test_the_versions_of_a_model_are_in_order(engines):
    engines.apply(0, engines.open(0, "2"), engines.open(0, "10"))
    engines.apply(1, engines.open(1, "3"))
    assert engines.served == ["2", "3", "10"]


def test_an_engine_process_that_opened_the_version_again_has_another_opening(engines):
    engines.apply(0, first := engines.open(0))
    engines.apply(1, other := engines.open(1))
    again = engines.open(0)
    engines.apply(0, again)
    engines.mirror.leases.wait_drained("topics")
    assert engines.mirror.openings(0) == [again.opening] != [first.opening]
    assert engines.mirror.openings(1) == [other.opening]


def test_files_that_were_opened_last_are_served(engines, tmp_path):
    changed = Path(shutil.copytree(engines.run, tmp_path / "changed"))
    older, newer = engines.open(0), engines.open(1, run=changed)
    for number, order in enumerate(((0, 1), (1, 0))):
        for engine in order:
            engines.apply(engine, (older, newer)[engine])
        engines.mirror.leases.wait_drained("topics")
        found = engines.mirror.openings(0), engines.mirror.openings(1)
        assert found == ([], [newer.opening]), number
    engines.slots[0].release(older.slot)
    engines.apply(0, newest := engines.open(0, run=changed))
    assert engines.mirror.openings(0) == [newest.opening]
    assert engines.mirror.openings(1) == [newer.opening]


def test_a_replaced_engine_process_gets_no_request_for_what_it_did_not_open(engines):
    engines.apply(0, engines.open(0))
    engines.apply(1, second := engines.open(1))
    model = engines.mirror.leases.find("topics", "1")
    engines.apply(0, replaced=True)
    assert engines.mirror.leases.find("topics", "1") is model
    assert engines.mirror.openings(0) == []
    assert engines.mirror.openings(1) == [second.opening]


def test_a_replaced_engine_process_that_opened_the_version_continues(engines):
    engines.apply(0, first := engines.open(0))
    model = engines.mirror.leases.find("topics", "1")
    engines.slots[0] = EngineSlots(engines.memory, 0)
    again = engines.open(0)
    assert again == first
    engines.apply(0, again, replaced=True)
    assert engines.mirror.leases.find("topics", "1") is model


def test_a_replaced_engine_process_that_opened_other_labels_is_another_model(engines, tmp_path):
    run = Path(shutil.copytree(engines.run, tmp_path / "run"))
    engines.apply(0, first := engines.open(0, run=run))
    model = engines.mirror.leases.find("topics", "1")
    manifest = read_manifest(run)
    labels = tuple(f"{label}-new" for label in manifest.task.labels)
    task = manifest.task.model_copy(update={"labels": labels})
    write_manifest(run, manifest.model_copy(update={"task": task}))  # the engine is the same
    engines.slots[0] = EngineSlots(engines.memory, 0)
    again = engines.open(0, run=run)
    assert again.opening != first.opening
    engines.apply(0, again, replaced=True)
    found = engines.mirror.leases.find("topics", "1")
    assert found is not model
    assert found.card.labels == labels


def test_an_entry_has_its_best_state_and_a_reason(engines):
    failed = Entry(name="topics", version="2", state=State.UNAVAILABLE, reason="no such file")
    loading = Entry(name="topics", version="2", state=State.LOADING)
    ready = Entry(name="topics", version="1", state=State.READY)
    engines.apply(0, engines.open(0), entries=(ready, failed))
    engines.apply(1, entries=(loading,))
    assert list(engines.mirror.entries()) == [
        ready,
        Entry(name="topics", version="2", state=State.LOADING, reason="no such file"),
    ]


def test_the_policy_is_that_of_any_engine_process(engines):
    policy = Policy(latest=3)
    assert engines.mirror.policy("topics") == NEWEST
    engines.mirror.apply(1, ModelsState(policies={"topics": policy}), replaced=False)
    engines.apply(0)
    assert engines.mirror.policy("topics") == policy


def test_calls_of_all_front_processes_are_made_one_at_a_time(engines, tmp_path):
    with (tmp_path / "calls").open("w") as file, ThreadPoolExecutor(1) as pool:
        fcntl.flock(file, fcntl.LOCK_EX)  # as another front process does
        call = pool.submit(engines.mirror.load, "topics")
        with pytest.raises(TimeoutError):
            call.result(0.1)
        fcntl.flock(file, fcntl.LOCK_UN)
        with pytest.raises(NotReadyError, match="an engine process is being started"):
            call.result(30)


def test_a_version_that_cannot_be_opened_leaves_the_others_and_is_opened_again(
    engines, monkeypatch, tmp_path
):
    def fail(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    first = engines.open(0)
    engines.apply(0, first)
    copy = Path(shutil.copytree(engines.run, tmp_path / "2"))
    versions = first, engines.open(0, "2", run=copy)
    with monkeypatch.context() as patch:
        patch.setattr(engine_mirror, "open_encoder", fail)
        errors = engines.mirror.apply(0, ModelsState(versions=versions), replaced=False)
    assert [type(error) for error in errors] == [OSError]
    assert engines.served == ["1"]
    engines.apply(0, *versions)
    assert engines.served == ["1", "2"]
