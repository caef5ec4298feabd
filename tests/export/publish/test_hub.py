"""Uploads to a model hub on loopback, and its refusals."""

import socket
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from huggingface_hub.utils import get_session
from transformers import pipeline

from pipework.errors import ConfigError
from pipework.export.publish.hub import HubRepository, _hub_errors
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import read_manifest
from tests.commands import pipe
from tests.hub_server import READER, TEAM, WRITER, running_hub

NAME = f"{TEAM}/topics"
# huggingface_hub uses a deprecated argument of httpx2.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub, with a token that may write."""
    with running_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        template = f"{running.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the hub speaks LFS
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", WRITER)
        monkeypatch.chdir(tmp_path)
        yield running


@pytest.fixture
def offline(monkeypatch, tmp_path, closed_port):
    """No connection to the hub; returns its address."""
    address = f"http://127.0.0.1:{closed_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return address


def publish(run, to=f"hf://{NAME}"):
    return pipe("publish", run, "--to", to)


def check_error(done, message, hint):
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert message in line
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_the_folder_comes_back_from_the_hub(exported_run, hub, tmp_path):
    done = publish(exported_run)
    assert done.returncode == 0, done.stderr
    engine, commit = done.stdout.splitlines()
    assert engine == f"published: {NAME}/onnx/model.onnx (onnx-fp32)"
    assert commit.startswith(f"published: {hub.address}/{NAME}/commit/")
    assert hub.repositories[NAME].commits == 1

    folder = tmp_path / "folder"
    assert pipe("publish", exported_run, "--to", f"folder:{folder}").returncode == 0
    snapshot = snapshot_download(NAME)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {*hub.files(NAME)} - {".gitattributes"}
    for name in names - {"README.md"}:  # the card has the name of its place
        assert file_digest(folder / name) == file_digest(tmp_path / snapshot / name), name
    cards = [(tmp_path / place / "README.md").read_text() for place in (snapshot, folder)]
    assert cards[0] == cards[1].replace('model="folder"', f'model="{NAME}"')
    assert f'model="{NAME}"' in cards[0]

    classify = pipeline("text-classification", model=snapshot)
    (found,) = classify("The match went to extra time")
    expected = pipe("predict", exported_run, "The match went to extra time").stdout
    assert found["label"] == expected.split("\t")[0]


def test_the_repository_is_a_source_of_pipe_import(exported_run, hub):
    assert publish(exported_run).returncode == 0
    done = pipe("import", NAME, "--out", "again")
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(Path("again"))
    assert manifest.task == read_manifest(exported_run).task
    assert manifest.imported.source == NAME
    assert manifest.imported.revision == hub.repositories[NAME].at("main")[0]


def test_a_branch_is_created_and_stale_engines_are_deleted(exported_run, hub):
    assert publish(exported_run).returncode == 0
    files = hub.files(NAME)
    files |= {"onnx/model_quantized.onnx": b"old", "LICENSE": b"mine"}
    done = publish(exported_run, f"hf://{NAME}@v2")
    assert done.returncode == 0, done.stderr
    names = {*hub.files(NAME, "v2")}
    assert "onnx/model_quantized.onnx" not in names
    assert {"LICENSE", "onnx/model.onnx", ".gitattributes"} <= names
    assert "onnx/model_quantized.onnx" in hub.files(NAME)  # main has not changed


def test_files_that_the_hub_has_are_not_uploaded_again(exported_run, hub):
    assert publish(exported_run).returncode == 0
    first = [request for request in hub.requests if request.startswith("PUT")]
    assert publish(exported_run).returncode == 0
    assert [request for request in hub.requests if request.startswith("PUT")] == first


@pytest.mark.parametrize(
    ("token", "name", "reason"),
    [
        ("hf_unknown", NAME, "the token is invalid or has expired"),
        (READER, NAME, "the token may not write there"),
        (WRITER, "others/topics", "the token may not write there"),
    ],
)
def test_a_refused_token_is_one_line(token, name, reason, exported_run, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", token)
    done = publish(exported_run, f"hf://{name}")
    message = f"the upload to {hub.address}/{name} failed: {reason}"
    check_error(done, message, "log in with `hf auth login`, or set HF_TOKEN to a token with write")
    assert token not in done.stdout + done.stderr
    assert hub.repositories == {}


@pytest.mark.usefixtures("hub")
def test_the_token_of_the_login_is_used(exported_run, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    check_error(publish(exported_run), "there is no token for the hub", "hf auth login")
    (tmp_path / "token").write_text(WRITER)
    assert publish(exported_run).returncode == 0


@pytest.mark.usefixtures("hub")
def test_a_damaged_token_is_not_printed(exported_run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_\x01secret")
    done = publish(exported_run)
    check_error(done, "the token for the hub has characters that no token has", "hf auth login")
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("path", ["/commit/", "/lfs/[0-9a-f]", "/api/models/.*/preupload"])
def test_an_upload_that_fails_leaves_no_commit(path, exported_run, hub):
    hub.rejects = path
    done = publish(exported_run)
    check_error(done, "failed: status 400", "try again: files that were uploaded are skipped")
    assert "signature" not in done.stderr
    assert hub.repositories[NAME].commits == 0


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("topics", "there is no organization or user"),
        ("a/b/c", "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
        ("team/a--b", "Cannot have -- or .. in repo_id"),
        ("team/two words", "Repo id must use alphanumeric chars, '-', '_' or '.'"),
        ("team/topics@", "the revision after @ is empty"),
    ],
)
def test_an_invalid_name_is_refused(target, reason):
    with pytest.raises(ConfigError) as error:
        HubRepository.parse(target)
    expected = f"--to hf://{target}: expected hf://ORG/NAME[@REVISION]: {reason}"
    assert str(error.value).startswith(expected)


def test_an_invalid_name_is_found_before_the_run_is_read(tmp_path):
    check_error(publish(tmp_path, "hf://topics"), "expected hf://ORG/NAME", "for example")


def test_a_disabled_hub_leaves_the_folder(exported_run, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    done = publish(exported_run, f"hf://{NAME}@v2")
    assert done.returncode == 0, done.stderr
    command = (
        f"hf upload {NAME} topics . --private --revision v2 --delete 'onnx/*' --delete 'openvino/*'"
    )
    engine, later = done.stdout.splitlines()
    assert engine == "published: topics/onnx/model.onnx (onnx-fp32)"
    assert later == f"next: {command}"
    assert "HF_HUB_OFFLINE is set: nothing was uploaded" in done.stderr
    assert (tmp_path / "topics/onnx/model.onnx").is_file()
    check_error(publish(exported_run), "topics already exists and is not an empty folder", "")


def test_without_a_connection_the_folder_is_kept(exported_run, offline, tmp_path):
    done = publish(exported_run)
    check_error(done, f"{offline} cannot be reached: ", f"upload it later: hf upload {NAME} topics")
    assert "nothing was uploaded, the folder is topics" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["topics"]


def test_the_password_of_an_unreachable_hub_is_not_printed(exported_run, offline, monkeypatch):
    address = offline.replace("//", "//user:secret@")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    done = publish(exported_run)
    check_error(done, f"{offline.replace('//', '//***@')} cannot be reached: ", "hf upload")
    assert "secret" not in done.stdout + done.stderr


def test_the_password_of_a_hub_that_refuses_is_not_printed(exported_run, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", hub.address.replace("//", "//user:secret@"))
    done = publish(exported_run)
    address = hub.address.replace("//", "//***@")
    check_error(done, f"the upload to {address}/{NAME} failed: the token is invalid", "log in")
    assert "secret" not in done.stdout + done.stderr


def test_an_error_without_a_text_is_reported_by_its_kind(offline):
    repository = HubRepository.parse(NAME)
    message = f"the upload to {offline}/{NAME} failed: TimeoutError"
    with pytest.raises(ConfigError, match=message), _hub_errors(repository):
        raise TimeoutError


def test_a_response_that_does_not_come_is_reported(offline):
    repository = HubRepository.parse(NAME)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        message = f"the upload to {offline}/{NAME} failed: "
        with pytest.raises(ConfigError, match=message), _hub_errors(repository):
            get_session().get(address, timeout=0.1)


def test_a_new_repository_is_private_and_an_old_keeps_its_visibility(exported_run, hub):
    line = f"{NAME} is a new private repository: make it public on its settings page"
    assert line in publish(exported_run).stderr
    assert hub.repositories[NAME].private
    hub.repositories[NAME].private = False
    assert line not in publish(exported_run).stderr
    assert not hub.repositories[NAME].private


def test_a_run_without_engines_creates_no_repository(trained_run, hub):
    done = publish(trained_run)
    check_error(done, "has no proven padded engine", "pipe export")
    assert hub.repositories == {}
