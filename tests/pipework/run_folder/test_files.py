"""Files of a run folder on a real disk."""

import errno
import fcntl
import hashlib
import math
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipework.errors import RunFolderError, as_pipe_error
from pipework.record import Record
from pipework.run_folder.files import (
    FileRecord,
    exclusive_lock,
    file_digest,
    record_file,
    verify_files,
    write_atomically,
)

CONTENT = b"weights of a model"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Figures(Record):
    """A record with a number."""

    value: float


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "checkpoint" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_rejects_numbers_that_are_not_finite(value):
    with pytest.raises(ValidationError, match="finite number"):
        Figures(value=value)


def test_a_record_is_frozen_and_rejects_unknown_fields():
    with pytest.raises(ValidationError, match="frozen"):
        Figures(value=1.0).value = 2.0
    with pytest.raises(ValidationError, match="Extra inputs"):
        Figures.model_validate({"value": 1.0, "other": 2.0})


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "a/../../b", "a\\b"])
def test_a_recorded_path_may_not_leave_the_run_folder(path):
    with pytest.raises(ValidationError, match="leaves the run folder"):
        FileRecord(path=path, sha256=SHA256, size=1)


def test_a_file_is_recorded_with_relative_path_digest_and_size(tmp_path, weights):
    expected = FileRecord(path="checkpoint/model.safetensors", sha256=SHA256, size=len(CONTENT))
    assert record_file(tmp_path, weights) == expected
    assert file_digest(weights) == SHA256


def test_unchanged_files_are_accepted(tmp_path, weights):
    verify_files(tmp_path, (record_file(tmp_path, weights),))


def test_a_missing_file_is_reported(tmp_path, weights):
    record = record_file(tmp_path, weights)
    weights.unlink()
    with pytest.raises(RunFolderError, match=r"model\.safetensors is missing") as caught:
        verify_files(tmp_path, (record,))
    assert "export again" in caught.value.hint


def test_a_changed_file_is_reported_with_both_digests(tmp_path, weights):
    record = record_file(tmp_path, weights)
    weights.write_bytes(CONTENT.upper())  # of the same size
    with pytest.raises(RunFolderError, match=r"model\.safetensors changed") as caught:
        verify_files(tmp_path, (record,))
    found = hashlib.sha256(CONTENT.upper()).hexdigest()
    assert found[:12] in str(caught.value)
    assert SHA256[:12] in str(caught.value)


def test_a_file_is_replaced_and_no_temporary_file_remains(tmp_path):
    path = tmp_path / "manifest.json"
    for content in (b"first", b"second"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert [*tmp_path.iterdir()] == [path]


def test_a_failed_write_keeps_the_previous_content(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    write_atomically(path, b"first")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipework.run_folder.files.os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"second")
    assert path.read_bytes() == b"first"


def test_a_locked_folder_is_reported(tmp_path):
    with (
        exclusive_lock(tmp_path),
        pytest.raises(RunFolderError, match="is being written by another") as caught,
        exclusive_lock(tmp_path),
    ):
        pass
    assert "wait until it has finished" in caught.value.hint


def test_a_file_is_locked_for_writing_as_network_file_systems_need(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    with exclusive_lock(path):
        links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
        (held,) = (int(link.name) for link in links if link.readlink() == path)
        assert fcntl.fcntl(held, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        with pytest.raises(RunFolderError, match="is being written"), exclusive_lock(path):
            pass


def test_the_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), exclusive_lock(tmp_path):
        raise ZeroDivisionError
    with tmp_path.joinpath("probe").open("w") as probe, exclusive_lock(tmp_path):
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock is on the folder only


def test_a_folder_that_does_not_exist_cannot_be_locked(tmp_path):
    with (
        pytest.raises(RunFolderError, match="absent cannot be opened: No such file"),
        exclusive_lock(tmp_path / "absent"),
    ):
        pass


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path):
    path = tmp_path / "manifest.json"
    path.with_name("manifest.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(path, b"{}")
    error = as_pipe_error(caught.value)
    assert str(error) == f"{path}: No space left on device"
    assert error.hint == "free space on the disk"
    assert not list(tmp_path.iterdir())
