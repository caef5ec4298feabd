"""A stand-in for a node of Kubernetes and a Deployment: pods of deploy/, run on this machine.

Each pod has a network namespace with an address of its own. The container's command, probes, hook
and grace period are those of the manifest. A service passes new connections to ready pods; it
learns of a change after a delay, as the nodes of a cluster do.
"""

import asyncio
import http.client
import itertools
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from tests.deploy.container import Running

POLL_S = 0.05
ENDPOINT_DELAY_S = 1.0
DEFAULTS = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3}
Manifest = Mapping[str, Any]


# Starts the container of a pod in a network namespace: (pod spec, name of the namespace).
StartContainer = Callable[[Manifest, str], Running]


class PodNetwork:
    """A network namespace, connected with this machine."""

    _numbers = itertools.count(secrets.randbelow(512))  # other tests may run at the same time

    def __init__(self) -> None:
        """Create the namespace.

        Raises:
            subprocess.CalledProcessError: no permission.
        """
        self.name = f"pod-{secrets.token_hex(4)}"
        second, third = divmod(next(self._numbers) % 512, 256)
        subnet = f"198.{18 + second}.{third}"  # of the addresses for tests of networks, RFC 2544
        self.address = f"{subnet}.2"
        link, inside = f"pod{secrets.token_hex(4)}", ("-n", self.name)
        _ip("netns", "add", self.name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("address", "add", f"{subnet}.1/24", "dev", link)
        _ip("link", "set", link, "up")
        _ip(*inside, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip(*inside, "link", "set", device, "up")

    def close(self) -> None:
        """Delete the namespace with its interfaces."""
        _ip("netns", "delete", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An HTTP probe of a container."""

    path: str
    port: int
    period_s: float
    timeout_s: float
    failures: int

    @classmethod
    def of(cls, container: Manifest, name: str) -> Self:
        """Return a probe with the defaults of Kubernetes for what the manifest leaves out."""
        manifest = {**DEFAULTS, **container[name]}
        request = manifest["httpGet"]
        ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
        return cls(
            path=request["path"],
            port=ports.get(request["port"], request["port"]),
            period_s=manifest["periodSeconds"],
            timeout_s=manifest["timeoutSeconds"],
            failures=manifest["failureThreshold"],
        )

    def passes(self, address: str) -> bool:
        """Send the request; any status from 200 to 399 passes."""
        connection = http.client.HTTPConnection(address, self.port, timeout=self.timeout_s)
        try:
            connection.request("GET", self.path)
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Pod:
    """A pod with one container.

    Attributes:
        address: IP address.
        ready: the readiness probe passes, and the pod is not being deleted.
        deleting: `delete` was called.
        events: what happened to the container that a user of a cluster would see.
    """

    def __init__(self, spec: Manifest, start: StartContainer, changed: Callable[[], None]) -> None:
        """Start the pod; `changed` is called when `ready` has changed."""
        (self._manifest,) = spec["containers"]
        self._grace_s = spec["terminationGracePeriodSeconds"]
        self._network = PodNetwork()
        self.address = self._network.address
        self.ready = self.deleting = False
        self.events: list[str] = []
        self._changed = changed
        self._container = start(spec, self._network.name)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def output(self) -> str:
        return self._container.output

    def delete(self) -> None:
        """Start the termination. The service learns of it at the same time as the node."""
        self.deleting = True
        self._set_ready(value=False)

    def join(self) -> None:
        """Wait until the pod has ended after `delete`."""
        self._thread.join()

    def _run(self) -> None:
        try:
            if self._started():
                self._probe_until_deleted()
            self._terminate()
        finally:
            self._container.kill()
            self._network.close()

    def _started(self) -> bool:
        """Wait for the startup probe; return whether it has passed before the pod was deleted."""
        probe = Probe.of(self._manifest, "startupProbe")
        for _ in range(probe.failures):
            if self._sleep(probe.period_s):
                return False
            if probe.passes(self.address):
                return True
        self.events.append("the startup probe failed")
        return False

    def _probe_until_deleted(self) -> None:
        readiness, liveness = (
            Probe.of(self._manifest, f"{name}Probe") for name in ("readiness", "liveness")
        )
        due_s = {readiness: time.monotonic(), liveness: time.monotonic() + liveness.period_s}
        failed = dict.fromkeys(due_s, 0)
        while True:
            probe = min(due_s, key=due_s.__getitem__)
            if self._sleep(due_s[probe] - time.monotonic()):
                return
            due_s[probe] += probe.period_s
            failed[probe] = 0 if probe.passes(self.address) else failed[probe] + 1
            if failed[liveness] == liveness.failures or not self._container.running:
                self.events.append("the liveness probe failed")
                return
            if probe is readiness and failed[probe] in (0, probe.failures):
                self._set_ready(value=failed[probe] == 0 and not self.deleting)

    def _terminate(self) -> None:
        """Run the hook, send SIGTERM, and SIGKILL after the grace period, which began before."""
        self._set_ready(value=False)
        ended_s = time.monotonic() + self._grace_s
        hook = self._manifest.get("lifecycle", {}).get("preStop")
        time.sleep(min(hook["sleep"]["seconds"], self._grace_s) if hook else 0)
        self._container.terminate()
        try:
            code = self._container.wait(max(0, ended_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.events.append("killed after the grace period")
        else:
            self.events += [f"ended with code {code}"] if code else []

    def _sleep(self, seconds: float) -> bool:
        """Sleep; return at once, and whether, the pod is being deleted."""
        ended_s = time.monotonic() + seconds
        while not self.deleting and (left_s := ended_s - time.monotonic()) > 0:
            time.sleep(min(left_s, POLL_S))
        return self.deleting

    def _set_ready(self, *, value: bool) -> None:
        if self.ready is not value:
            self.ready = value
            self._changed()


class Deployment:
    """Pods of a Deployment.

    Attributes:
        pods: pods that are not being deleted.
        deleted: the other pods.
    """

    def __init__(
        self, manifest: Manifest, start: StartContainer, changed: Callable[[], None]
    ) -> None:
        """Take a manifest; no pod is started yet."""
        self._start, self._notify = start, changed
        self.pods: list[Pod] = []
        self.deleted: list[Pod] = []
        self.apply(manifest)

    def apply(self, manifest: Manifest) -> None:
        """Set the manifest of the next pods."""
        spec = manifest["spec"]
        self._replicas: int = spec["replicas"]
        strategy = spec["strategy"]["rollingUpdate"]
        self._surge, self._unavailable = strategy["maxSurge"], strategy["maxUnavailable"]
        self._create = partial(Pod, spec["template"]["spec"], self._start, self._notify)

    def roll_out(self, timeout_s: float) -> None:
        """Replace all pods by new pods, or start the first ones.

        Raises:
            TimeoutError: the new pods did not become ready; as in a cluster, old pods remain.
        """
        old, new = [*self.pods], list[Pod]()
        ended_s = time.monotonic() + timeout_s
        while old or sum(pod.ready for pod in new) < self._replicas:
            if len(new) < self._replicas and len(self.pods) < self._replicas + self._surge:
                new.append(self._create())
                self.pods.append(new[-1])
            available = sum(pod.ready for pod in self.pods)
            if old and available > self._replicas - self._unavailable:
                self._delete(old.pop(0))
            if time.monotonic() > ended_s:
                outputs = "\n".join(pod.output[-500:] for pod in new)
                message = f"{len(old)} old pods remain after {timeout_s} s: {outputs}"
                raise TimeoutError(message)
            time.sleep(POLL_S)

    def _delete(self, pod: Pod) -> None:
        pod.delete()
        self.pods.remove(pod)
        self.deleted.append(pod)

    def close(self) -> list[str]:
        """Delete all pods, wait for their end, and return their events."""
        for pod in [*self.pods]:
            self._delete(pod)
        return self.wait()

    def wait(self) -> list[str]:
        """Wait for the end of deleted pods, and return their events."""
        for pod in self.deleted:
            pod.join()
        return [event for pod in self.deleted for event in pod.events]


class Service:
    """Passes connections to a port on to the ready pods of a Deployment, in turn.

    Established connections stay where they are. A change of the pods counts after a delay.
    """

    def __init__(self, port: int) -> None:
        """Create a service for a port of the pods; `start` it in an event loop."""
        self._port = port
        self._endpoints: list[str] = []
        self._turn = itertools.count()
        self._tasks = set[asyncio.Task[None]]()

    def update(self, addresses: list[str]) -> None:
        """Set the addresses of the ready pods."""
        self._endpoints = addresses

    async def start(self) -> int:
        """Listen on a free port and return it."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0, backlog=1024)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and close the connections."""
        self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        endpoints = self._endpoints
        try:
            address = endpoints[next(self._turn) % len(endpoints)]
            inner_reader, inner_writer = await asyncio.open_connection(address, self._port)
        except (OSError, ZeroDivisionError):
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy a direction of a connection until its end, and close the other side then."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:  # reset
        writer.transport.abort()


@contextmanager
def cluster(manifest: Manifest, start: StartContainer) -> Iterator[tuple[Deployment, list[int]]]:
    """Run a Deployment with a Service; yields it and a port of the service per container port."""
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    services = [Service(port["containerPort"]) for port in container["ports"]]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def changed() -> None:
        addresses = [pod.address for pod in deployment.pods if pod.ready]
        for service in services:
            loop.call_soon_threadsafe(loop.call_later, ENDPOINT_DELAY_S, service.update, addresses)

    deployment = Deployment(manifest, start, changed)
    try:
        starts = [asyncio.run_coroutine_threadsafe(each.start(), loop) for each in services]
        yield deployment, [start.result() for start in starts]
    finally:
        deployment.close()
        for service in services:
            asyncio.run_coroutine_threadsafe(service.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
