"""An engine process: computes the requests of all front processes in common batches."""

import asyncio
import json
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from uvicorn import Config

from pipework.errors import NotReadyError, PipeError
from pipework.machine import MemoryTrimmer
from pipework.serve.config import ServeSettings
from pipework.serve.models.open_models import open_models
from pipework.serve.models.registry import Models
from pipework.serve.run import SWITCH_S, tune_garbage_collector
from pipework.serve.scheduling.model_protocol import RequestScheduler
from pipework.serve.scheduling.predictor import Predictor
from pipework.serve.scheduling.queue import Job, JobResult
from pipework.serve.workers.messages import (
    COMPUTED,
    JOB,
    SUBMISSION,
    Channel,
    Json,
    Kind,
    Message,
    ModelsState,
    ReceivedJob,
    Submission,
    VersionState,
    error_content,
)
from pipework.serve.workers.shared_memory import EngineSlots, SharedMemory, write_logits

POLL_S = 0.1
TRIM_TICKS = 20


class _Front:
    """The connection of a front process."""

    def __init__(self, engine: "EngineProcess") -> None:
        self._engine = engine
        self.number = -1
        self.jobs: dict[int, Job] = {}
        self.applied = 0  # generation of the state that it serves
        self.open: set[int] = set()  # versions that it had open then, and
        self.sent: dict[int, set[int]] = {}  # those of later states, by generation
        self.channel = Channel(self._receive, partial(engine.remove, self))

    def _receive(self, messages: Sequence[Message]) -> None:
        openings = set()
        for kind, content in messages:
            if kind == Kind.SUBMIT:
                submission = Submission(*SUBMISSION.unpack(content))
                self._submit(submission)
                openings.add(submission.opening)
            elif kind == Kind.CONTROL:
                self._control(json.loads(content))
            elif job := self.jobs.get(*JOB.unpack(content)):
                job.future.cancel()
        self._engine.publish(openings)

    def uses(self, opening: int) -> bool:
        """Whether it may send requests to a version."""
        return opening in self.open or any(opening in sent for sent in self.sent.values())

    def _submit(self, submission: Submission) -> None:
        job = ReceivedJob.of(submission, self.arena)
        self.jobs[submission.job] = job
        done = partial(self._engine.done, self, submission)
        job.future.add_done_callback(done)
        accepted = int(not submission.repeated)
        try:
            scheduler = self._engine.scheduler(submission.opening)
            if accepted:
                scheduler.reserve()
        except PipeError as error:
            job.fail(error)
            return
        scheduler.enqueue([job], reserved=accepted)

    def _control(self, content: Json) -> None:
        kind = content["kind"]
        if kind == "hello":
            self.number, self.open = content["front"], set(content["open"])
            self.arena = self._engine.memory.arenas[self.number]
            self._engine.add(self)
        elif kind == "call":
            self._engine.call(self, content["number"], content["action"], content["name"])
        else:
            self._engine.applied(self, content["generation"], set(content["open"]))

    def finish(self, request: Submission, future: "Future[JobResult]") -> None:
        """Send the outcome of a request, unless the front process has ended."""
        number = request.job
        if self.jobs.pop(number, None) is None:
            return
        try:
            result = future.result()
        except CancelledError:
            self.channel.send(Kind.FAILED, JOB.pack(number))
        except Exception as error:  # noqa: BLE001  (every error belongs to the request)
            content = json.dumps(error_content(error)).encode()
            self.channel.send(Kind.FAILED, JOB.pack(number) + content)
        else:
            write_logits(result.outputs.values, self.arena, request.logits)
            computed = COMPUTED.pack(number, result.queue_s, result.infer_s)
            self.channel.send(Kind.RESULT, computed)


_Outcome = tuple[_Front, Submission, "Future[JobResult]"]


class EngineProcess:
    """The models, and the connections of the front processes.

    Attributes:
        memory: the memory of all processes.
    """

    _models: Models

    def __init__(self, memory: SharedMemory, number: int) -> None:
        self.memory = memory
        self._condition = threading.Condition()
        self._slots = EngineSlots(memory, number)
        self._versions: dict[int, tuple[Predictor, VersionState]] = {}  # by opening
        self._fronts: dict[int, _Front] = {}
        self._state = ModelsState()
        self._outcomes: deque[_Outcome] = deque()
        self._waking = self._ending = self._stopping = False
        self._calls: set[asyncio.Task[None]] = set()

    def run(
        self,
        target: Path,
        settings: ServeSettings,
        listener: socket.socket,
        ready: Callable[[], None],
    ) -> None:
        """Compute until SIGTERM, and until no front process is connected.

        Args:
            target: see `serve`.
            settings: the settings of the server.
            listener: the socket that front processes connect to.
            ready: called when the models are open.

        Raises:
            PipeError: no model can be opened; see `open_models`.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends this one
        sys.setswitchinterval(SWITCH_S)
        with open_models(target, settings, opened=self.opened) as self._models:
            try:
                with asyncio.Runner(loop_factory=Config("").get_loop_factory()) as runner:
                    runner.run(self._run(listener, ready))
            finally:
                with self._condition:
                    self._stopping = True
                    self._condition.notify_all()

    def opened(self, predictor: Predictor, run: Path) -> None:
        """Give an opened version a slot: that of an earlier engine process, with its counts.

        Raises:
            NotReadyError: all slots are in use.
        """
        name = f"{predictor.name}/{predictor.version}/{predictor.digest}"
        with self._condition:
            slot, opening = self._slots.take(name)
            state = VersionState(
                slot=slot,
                opening=opening,
                name=predictor.name,
                version=predictor.version,
                run=str(run.resolve()),
                engine=predictor.engine,
                digest=predictor.digest,
            )
            self._versions[opening] = predictor, state
            self._slots.write(slot, predictor.load, alive=predictor.alive, ready=predictor.ready)
        predictor.closing = partial(self._closing, opening)

    def _closing(self, opening: int) -> None:
        """Wait until no front process uses a version. It is not served any more."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stopping or not any(f.uses(opening) for f in self._fronts.values())
            )
            _, state = self._versions.pop(opening)
            self._slots.release(state.slot)

    def scheduler(self, opening: int) -> RequestScheduler:
        """Return the scheduler of a version.

        Raises:
            NotReadyError: it has been closed.
        """
        version = self._versions.get(opening)
        if version is None:
            message = "the version has been closed"
            raise NotReadyError(message)
        return version[0].scheduler

    def add(self, front: _Front) -> None:
        """Add a front process, in place of an earlier one with its number."""
        with self._condition:
            if earlier := self._fronts.get(front.number):
                earlier.channel.close()
                self.remove(earlier)
            self._fronts[front.number] = front
            self._send_state(front)

    def remove(self, front: _Front) -> None:
        """Forget a front process and its requests."""
        with self._condition:
            if self._fronts.get(front.number) is front:
                del self._fronts[front.number]
            self._condition.notify_all()
        jobs, front.jobs = front.jobs, {}
        for job in jobs.values():
            job.future.cancel()

    def applied(self, front: _Front, generation: int, openings: set[int]) -> None:
        """Note that a front process has applied a state, and has only these versions open."""
        with self._condition:
            front.applied, front.open = generation, openings
            front.sent = {
                number: sent for number, sent in front.sent.items() if number > generation
            }
            self._condition.notify_all()

    def done(self, front: _Front, request: Submission, future: "Future[JobResult]") -> None:
        """Send the outcome of a request soon, from any thread."""
        self._outcomes.append((front, request, future))
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._send_outcomes)

    def publish(self, openings: Iterable[int]) -> None:
        """Write the load of versions to shared memory."""
        with self._condition:
            for opening in openings:
                if version := self._versions.get(opening):
                    model, state = version
                    alive = model.alive or self._models.reopens(model)
                    self._slots.write(state.slot, model.load, alive=alive, ready=model.ready)

    def call(self, front: _Front, number: int, action: str, name: str) -> None:
        """Load or unload a model for a client, and reply when all front processes serve it."""

        async def reply() -> None:
            error = None
            try:
                models = self._models
                await (models.load(name) if action == "load" else models.unload(name))
                self._refresh()
                await asyncio.to_thread(self._wait_until_applied)
            except Exception as reason:  # noqa: BLE001  (the client gets it)
                error = error_content(reason)
            front.channel.send_json({"kind": "reply", "number": number, "error": error})

        task = asyncio.create_task(reply())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _run(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        self._slots.release_others()
        self._refresh()
        server = await loop.create_unix_server(lambda: _Front(self).channel, sock=listener)
        tune_garbage_collector()
        trimmer, trimming, ticks = MemoryTrimmer(), ThreadPoolExecutor(1), count(1)
        ready()
        while self._fronts or not self._ending:
            await asyncio.sleep(POLL_S)
            self._refresh()
            self.publish(list(self._versions))
            self._check_alive()
            if next(ticks) % TRIM_TICKS == 0 and trimmer.is_due():
                await loop.run_in_executor(trimming, trimmer.trim)  # the default may be full
        server.close()

    def _check_alive(self) -> None:
        """End this process if a model has no engine and other engine processes hide this."""
        models = self._models
        for model in models.serving() if self.memory.engines > 1 else ():
            if not (model.alive or models.reopens(model)):
                message = f"model {model.name} version {model.version}: no engine is left"
                raise NotReadyError(message)

    def _send_outcomes(self) -> None:
        self._waking = False  # first: later outcomes must wake the loop again
        openings = set()
        while self._outcomes:
            front, request, future = self._outcomes.popleft()
            front.finish(request, future)
            openings.add(request.opening)
        self.publish(openings)

    def _refresh(self) -> None:
        """Send the state of the models to all front processes if it has changed."""
        with self._condition:
            state = self._current_state()
            if state != self._state:
                generation = self._state.generation + 1
                self._state = state.model_copy(update={"generation": generation})
                for front in self._fronts.values():
                    self._send_state(front)

    def _wait_until_applied(self) -> None:
        generation = self._state.generation
        with self._condition:
            self._condition.wait_for(
                lambda: all(front.applied >= generation for front in self._fronts.values())
            )

    def _current_state(self) -> ModelsState:
        models = self._models
        states = {id(predictor): state for predictor, state in self._versions.values()}
        served = [states[id(model)] for model in models.serving() if id(model) in states]
        return ModelsState(
            generation=self._state.generation,
            versions=tuple(served),
            entries=tuple(models.index()),
            policies={name: models.policy(name) for name in models.names},
        )

    def _send_state(self, front: _Front) -> None:
        front.sent[self._state.generation] = {v.opening for v in self._state.versions}
        state = self._state.model_dump(mode="json")
        front.channel.send_json({"kind": "state", "state": state})

    def _stop(self) -> None:
        self._ending = True
