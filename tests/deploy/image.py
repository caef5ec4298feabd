"""Images built by buildah from a base image of Debian, without a registry."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
PROGRAMS = ("buildah", "mmdebstrap", "runc")
TIMEOUT_S, BUILD_S = 600, 1800
TAG = "localhost/pipework:0.1.0"
CERTIFICATES = Path("/etc/ssl/certs")
# Settings of pip that say where packages are, and no other settings of this machine.
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "cert")


def absent_component() -> str | None:
    """Return why images cannot be built on this machine, None if they can."""
    if os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        return f"buildah is absent: as root, apt-get install {' '.join(PROGRAMS)}"
    return None


def run(*command: object, **options: Any) -> str:
    """Run a command and return its output.

    Raises:
        AssertionError: the command failed; the message has the end of its output.
    """
    options = {"timeout": TIMEOUT_S, "cwd": ROOT, **options}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def python_base() -> str:
    """Return the name of the image that the Containerfile starts from."""
    (name,) = re.findall(r"^ARG PYTHON=(\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    return name


def build_debian(tar: Path) -> None:
    """Write the files of a small Debian with Python 3.11 and pip, as in images of Python."""
    partial = tar.with_suffix(".partial")
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
    hook = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"  # otherwise it installs perl
    packages = "--include=usr-is-merged,python-is-python3,python3-pip,python3-venv"
    run(
        "mmdebstrap",
        "--variant=minbase",
        "--format=tar",
        hook,
        *options,
        packages,
        "bookworm",
        partial,
    )
    partial.rename(tar)


def pip_settings() -> dict[str, str]:
    """Return pip's settings of this machine that a build needs."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    return {name: found[name] for name in PIP_SETTINGS if name in found}


class Builder:
    """buildah with a storage of its own and the base image, so that a build pulls nothing."""

    def __init__(self, folder: Path, base: Path) -> None:
        """Create the storage in a folder, with the base image from a tar file."""
        settings = pip_settings()
        lines = ["[global]", *(f"{name} = {value}" for name, value in settings.items()), ""]
        (folder / "pip.conf").write_text("\n".join(lines))
        storage = {"driver": "vfs", "graphroot": folder / "store", "runroot": folder / "run"}
        lines = [f'{name} = "{value}"' for name, value in storage.items()]
        (folder / "storage.conf").write_text("\n".join(["[storage]", *lines, ""]))
        found = map(Path, settings.get("find-links", "").split())
        folders = [CERTIFICATES, *(path for path in found if path.is_dir())]
        mounts = [f"{folder}/pip.conf:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in folders)]
        (folder / "containers.conf").write_text(f"[containers]\nvolumes = {json.dumps(mounts)}\n")
        self._folder = folder
        self.environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        container = self("from", "scratch").strip()
        self("add", container, base, "/")
        self("commit", container, python_base())
        self("rm", container)

    def __call__(self, *words: object) -> str:
        return run("buildah", *words, env=self.environment)

    def run(self, command: str, name: str) -> "Image":
        """Run a shell command that builds an image."""
        run("sh", "-c", command, env=self.environment, timeout=BUILD_S)
        return Image(self, f"localhost/{name}:0.1.0")

    def build(self, name: str, line: str, changed: str) -> "Image":
        """Build the last stage of the Containerfile with a changed line; TAG has its packages."""
        _, last = CONTAINERFILE.read_text().split("FROM ${PYTHON}\n")
        assert line in last
        stages = f"FROM {TAG} AS build\nFROM {python_base()}\n{last.replace(line, changed)}"
        command = ["buildah", "bud", "-f", "-", "-t", name, "."]
        done = subprocess.run(
            command,
            input=stages,
            env=self.environment,
            cwd=ROOT,
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return Image(self, name)

    def close(self) -> None:
        """Delete the containers and images: pytest would keep gigabytes."""
        self("rm", "--all")
        shutil.rmtree(self._folder)


@dataclass
class Image:
    """An image in the storage of a builder.

    Attributes:
        config: user, command, environment and ports, as in the OCI image specification.
        root: the mounted files.
        size_bytes: the bytes of the files, uncompressed.
    """

    builder: Builder
    name: str
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        found = json.loads(self.builder("inspect", "--type", "image", self.name))
        self.config = found["OCIv1"]["config"]

    @cached_property
    def root(self) -> Path:
        container = self.builder("from", "--pull-never", self.name).strip()
        return Path(self.builder("mount", container).strip())

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    @cached_property
    def size_bytes(self) -> int:
        return file_bytes(self.root)


def file_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; hard links count once."""
    stats = [os.lstat(f"{path}/{name}") for path, _, names in os.walk(folder) for name in names]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())
