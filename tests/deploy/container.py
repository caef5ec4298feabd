"""Containers of an image, run by runc as a node of Kubernetes runs them."""

import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 60
NAMESPACES = ("pid", "mount", "ipc", "uts")


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What a container is started from.

    Attributes:
        root: files of the image.
        command: program and arguments.
        environment: environment variables.
        user: user and group id.
        read_only: whether the root file system is read-only.
        mounts: read-only folders by their path in the container; None is an empty writable folder.
        network: name of a network namespace; None is that of this process.
    """

    root: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    user: int
    read_only: bool = True
    mounts: Mapping[str, Path | None] = field(default_factory=dict)
    network: str | None = None

    def runtime_config(self) -> dict[str, Any]:
        """Return the configuration of the OCI runtime specification; all capabilities dropped."""
        namespaces = [{"type": name} for name in NAMESPACES]
        if self.network is not None:
            namespaces.append({"type": "network", "path": f"/run/netns/{self.network}"})
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.root), "readonly": self.read_only},
            "process": {
                "args": list(self.command),
                "cwd": "/",
                "env": [f"{name}={value}" for name, value in self.environment.items()],
                "user": {"uid": self.user, "gid": self.user},
                "noNewPrivileges": True,
                "capabilities": {},
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                _empty("/dev", "mode=755"),
                {
                    "destination": "/sys",
                    "type": "bind",
                    "source": "/sys",
                    "options": ["rbind", "ro"],
                },
                *(_mount(path, source) for path, source in self.mounts.items()),
            ],
            "linux": {"namespaces": namespaces},
        }


def _mount(path: str, source: Path | None) -> dict[str, Any]:
    if source is None:
        return _empty(path, "mode=1777")
    return {"destination": path, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}


def _empty(path: str, *options: str) -> dict[str, Any]:
    return {
        "destination": path,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", *options],
    }


class Container:
    """A running container. SIGTERM is passed on to its first process."""

    def __init__(self, spec: ContainerSpec, folder: Path) -> None:
        """Start the container; its configuration and its output are written into a folder."""
        folder.mkdir()
        self._name = f"pipework-{secrets.token_hex(6)}"
        self._output = folder / "output"
        (folder / "config.json").write_text(json.dumps(spec.runtime_config()))
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ["runc", "run", "--bundle", folder, self._name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: the container is still running.
        """
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; a container that has ended is left as it is."""
        while self.running:
            subprocess.run(["runc", "kill", self._name, "KILL"], capture_output=True, check=False)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)


def run_container(spec: ContainerSpec, folder: Path) -> str:
    """Run a container to its end and return its output.

    Raises:
        AssertionError: its exit code is not 0; the message has the output.
    """
    container = Container(spec, folder)
    try:
        assert container.wait(TIMEOUT_S) == 0, container.output
    finally:
        container.kill()
    return container.output
