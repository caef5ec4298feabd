"""The order of queued requests: clients take turns by tokens.

This is start-time fair queueing (Goyal et al. 1996). A turn has at most the tokens of a full batch.
A larger request gets the next turn of its client after each turn, so that small requests of its
client wait for one of its turns and not for all. Where a batch takes less, the request keeps the
rest of its turn; where it takes more, the next turn of the client is later by as much.
"""

from bisect import bisect_right
from collections import deque
from operator import attrgetter

from pipework.serve.scheduling.job import Job, JobSlice

MIN_CLIENTS = 64  # whose next turns are kept
_turn = attrgetter("turn")


class FairOrder:
    """Queued requests with the same priority.

    Attributes:
        jobs: the requests in the order of their turns.
    """

    def __init__(self, turn_tokens: int) -> None:
        """Create an empty queue with this number of tokens per turn."""
        self.jobs: deque[Job] = deque()
        self._turn_tokens = turn_tokens
        self._virtual_time = 0.0  # earliest turn of a new request
        self._last_turn = 0.0  # of a request that was served
        self._next_turns: dict[str, float] = {}  # by client

    def add(self, job: Job) -> None:
        """Insert a request at the next turn of its client."""
        client = job.options.client
        job.turn = max(self._virtual_time, self._next_turns.get(client, 0.0))
        job.turn_left = min(job.tokens, self._turn_tokens)
        self._next_turns[client] = job.turn + job.turn_left
        self._insert(job)

    def take(self, room: int, *, whole_batch: bool) -> JobSlice:
        """Take the next inputs of the first request; see `Job.take`."""
        job = self.jobs[0]
        part = job.take(room, whole_batch=whole_batch)
        if part.stop > part.start:
            self.jobs.popleft()
            self._charge(job, part.tokens)
        return part

    def discard(self, job: Job) -> None:
        """Remove a request; its client may use its turn."""
        self.jobs.remove(job)
        self._delay(job.options.client, -job.turn_left)

    def advance(self, served: int, clients: int, batch_tokens: int) -> None:
        """Move the virtual time after a batch, in which a number of clients had `served` tokens.

        It grows with the tokens, so that clients with one request each do not pass the others for
        ever. It is at most a batch after the first turn, so that a new client does not wait long.
        """
        self._virtual_time = max(self._last_turn, self._virtual_time + served / max(1, clients))
        if self.jobs:
            self._virtual_time = min(self._virtual_time, self.jobs[0].turn + batch_tokens)
        else:
            self._next_turns.clear()
        if len(self._next_turns) > 2 * len(self.jobs) + MIN_CLIENTS:
            turns = self._next_turns.items()
            self._next_turns = {client: turn for client, turn in turns if turn > self._virtual_time}

    def _charge(self, job: Job, tokens: int) -> None:
        self._last_turn = max(self._last_turn, job.turn)
        job.turn += tokens
        job.turn_left -= tokens
        if job.turn_left < 0:
            self._delay(job.options.client, -job.turn_left)
        if job.taken:
            return
        if job.turn_left > 0:
            self._insert(job)
        else:
            self.add(job)

    def _delay(self, client: str, tokens: int) -> None:
        self._next_turns[client] = self._next_turns.get(client, 0.0) + tokens

    def _insert(self, job: Job) -> None:
        jobs = self.jobs
        if jobs and jobs[-1].turn > job.turn:
            jobs.insert(bisect_right(jobs, job.turn, key=_turn), job)
        else:
            jobs.append(job)
