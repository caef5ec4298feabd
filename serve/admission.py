"""Refuses requests that a full queue would refuse, from their heads alone.

At twice the load that a server bears, half of what comes is refused: what a refusal costs is taken
from the answers. So none of these becomes a task, or passes through the app.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipework.errors import PipeError, TooBusyError
from serve.answerer import Answerer
from serve.failures import worded
from serve.keys import ApiKeys, KeyNeededError
from serve.models import Models
from serve.observed import REQUEST_ID, Door, seen
from serve.schemas import PREDICT_PATH
from serve.watch import Watch, looked_at

Headers = Sequence[tuple[bytes, bytes]]
PREDICT = PREDICT_PATH.encode()
INFER = re.compile(rb"/v2/models/([\w.-]+)(?:/versions/([\w.-]+))?/infer", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer: its status, its headers but for those of its body, and its body, JSON."""

    status: int
    headers: Headers
    body: bytes


class Admission:
    """Knows the requests that ask a model whose queue is full."""

    def __init__(self, models: Models, keys: ApiKeys, watch: Watch) -> None:
        """Take who is asked, who may ask, and who wants to know of it."""
        self._models = models
        self._keys = keys
        self._watch = watch

    def refusal(self, url: bytes, headers: Headers) -> Refusal | None:
        """Return the answer to a POST that would be refused; it is observed as any other.

        None for all else, as for a model that is not ready or a client without a key: whatever else
        is wrong is told by who reads the request.
        """
        if self._keys and not self._knows(headers):
            return None
        model = self._asked(url)
        busy = _busy(model) if model is not None and model.ready else None
        if model is None or busy is None:
            return None
        observed = seen(Door.V1 if url == PREDICT else Door.V2, looked_at(headers))
        observed.model, observed.version = model.name, model.version
        status, text, named = worded(busy)
        observed.status = str(status)
        self._watch.finish(observed)
        named[REQUEST_ID] = observed.id
        return Refusal(
            status=status,
            headers=[(name.encode(), value.encode()) for name, value in named.items()],
            body=json.dumps({"error": text}).encode(),
        )

    def _asked(self, url: bytes) -> Answerer | None:
        name = version = b""
        if url != PREDICT:
            asked = INFER.fullmatch(url)
            if asked is None:
                return None
            name, version = asked[1], asked[2] or b""
        try:
            return self._models.find(name.decode(), version.decode())
        except PipeError:
            return None

    def _knows(self, headers: Headers) -> bool:
        try:
            self._keys.check(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers
            )
        except KeyNeededError:
            return False
        return True


def _busy(model: Answerer) -> TooBusyError | None:
    try:
        model.check_room()
    except TooBusyError as error:
        return error.with_traceback(None)  # whose frames hold it: garbage that has to be found
    except PipeError:
        return None
    return None
