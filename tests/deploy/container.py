"""Containers of an image, run by runc as a node of Kubernetes runs them."""

import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.image import Image

TIMEOUT_S = 60
NAMESPACES = ("pid", "mount", "ipc", "uts")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of this machine, or an empty one in memory if `source` is None."""

    source: Path | None
    read_only: bool = True

    def runtime_config(self, path: str) -> dict[str, Any]:
        """Return the mount at a path of the container, as in the OCI runtime specification."""
        options = ["rbind", "ro" if self.read_only else "rw"]
        mount = {"destination": path, "type": "bind", "source": str(self.source)}
        return _empty(path, "mode=1777") if self.source is None else {**mount, "options": options}


HOSTS = Mount(source=Path("/etc/hosts"))


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What a container is started from.

    Attributes:
        root: files of the image.
        command: program and arguments.
        environment: environment variables.
        user: user and group id.
        read_only: whether the root file system is read-only.
        mounts: folders by their path in the container.
        network: name of a network namespace; None is that of this process.
    """

    root: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    user: int
    read_only: bool = True
    mounts: Mapping[str, Mount] = field(default_factory=dict)
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
                HOSTS.runtime_config("/etc/hosts"),  # a node writes one for each pod
                *(mount.runtime_config(path) for path, mount in self.mounts.items()),
            ],
            "linux": {"namespaces": namespaces},
        }


def _empty(path: str, *options: str) -> dict[str, Any]:
    return {
        "destination": path,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", *options],
    }


def pod_container(
    pod: Mapping[str, Any],
    image: Image,
    volumes: Mapping[str, Path | None],
    *,
    network: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> ContainerSpec:
    """Return the container of a pod's manifest.

    Args:
        pod: pod spec with one container.
        image: image of the container.
        volumes: folders by the name of the volume, None for an empty one.
        network: name of a network namespace.
        variables: environment variables that a controller adds.
    """
    (container,) = pod["containers"]
    security = {**pod.get("securityContext", {}), **container["securityContext"]}
    command = container.get("command", image.config["Entrypoint"])
    mounts = {}
    for mount in container["volumeMounts"]:
        source = volumes[mount["name"]]
        source = source and source / mount.get("subPath", "")
        mounts[mount["mountPath"]] = Mount(source=source, read_only=mount.get("readOnly", False))
    given = {variable["name"]: variable["value"] for variable in container.get("env", ())}
    return ContainerSpec(
        root=image.root,
        command=[*command, *container.get("args", ())],
        environment={**image.environment, **given, **(variables or {})},
        user=security["runAsUser"],
        read_only=security["readOnlyRootFilesystem"],
        mounts=mounts,
        network=network,
    )


class Running:
    """A running program, whose output goes to a file."""

    def __init__(self, command: Sequence[str | Path], output: Path, **options: Any) -> None:
        """Start the program, with options of `subprocess.Popen`."""
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, **options
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
            subprocess.TimeoutExpired: the program is still running.
        """
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; a program that has ended is left as it is."""
        self._process.kill()
        self._process.wait()


class Container(Running):
    """A running container. SIGTERM is passed on to its first process."""

    def __init__(self, spec: ContainerSpec, folder: Path) -> None:
        """Start the container; its configuration and its output are written into a folder."""
        folder.mkdir()
        self._name = f"pipework-{secrets.token_hex(6)}"
        (folder / "config.json").write_text(json.dumps(spec.runtime_config()))
        super().__init__(["runc", "run", "--bundle", folder, self._name], folder / "output")

    def kill(self) -> None:
        while self.running:
            subprocess.run(["runc", "kill", self._name, "KILL"], capture_output=True, check=False)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)


def run_container(spec: ContainerSpec, folder: Path, timeout_s: float = TIMEOUT_S) -> str:
    """Run a container to its end and return its output.

    Raises:
        AssertionError: its exit code is not 0; the message has the output.
    """
    container = Container(spec, folder)
    try:
        assert container.wait(timeout_s) == 0, container.output
    finally:
        container.kill()
    return container.output
