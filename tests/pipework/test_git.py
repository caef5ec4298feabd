import subprocess

from pipework.git import git_commit


def git(root, *words):
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(root), *name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_ends_in_dirty_when_files_differ(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
    inner = tmp_path / "site-packages"
    inner.mkdir()
    assert git_commit(inner) is None  # inside another repository
