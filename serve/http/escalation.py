"""Another server answers the texts to which the model gives no label."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from pipework.closeable import Closeable
from pipework.data.examples import Example
from pipework.errors import ConfigError, InputError, PipeError
from pipework.serve.config import EscalationSettings
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.predictions import AbstainedLabel, EscalatedLabel, Prediction, SingleLabel

if TYPE_CHECKING:
    from pipework.client.client import Client

log = logging.getLogger(__name__)
REQUESTS = 16  # at a time
PAUSE_S = 5.0  # after a failure


class Escalation(Closeable):
    """Replaces predictions without a label by those of another server."""

    def __init__(self, client: "Client | None", timeout_s: float) -> None:
        """Take ownership of a client, None for no server; a request takes at most `timeout_s`."""
        self._client, self._timeout_s = client, timeout_s
        self._threads = ThreadPoolExecutor(REQUESTS, thread_name_prefix="escalation")
        self._paused_until_s = 0.0

    @classmethod
    def of(cls, settings: EscalationSettings) -> "Escalation":
        """Return the escalation of the settings.

        Raises:
            ConfigError: the URL is not valid.
        """
        if settings.url is None:
            return cls(None, settings.timeout_s)
        from pipework.client.client import Client  # noqa: PLC0415  (loads httpx)

        try:
            client = Client(settings.url, settings.timeout_s, escalated=True)
        except ConfigError as error:
            message = f"escalation.url: {error}"
            raise ConfigError(message, error.hint) from error
        return cls(client, settings.timeout_s)

    async def answer(
        self,
        model: Predictor,
        examples: Sequence[Example],
        predictions: list[Prediction],
        top_k: int | None,
        options: RequestOptions,
    ) -> list[Prediction]:
        """Return the predictions with the labels of the other server in place of missing ones.

        If it does not answer in time, the predictions stay as they are. After a failure, it is not
        asked for `PAUSE_S` seconds. Requests that were escalated to this server are not escalated
        again, so that two servers cannot ask each other for ever.
        """
        client = self._client
        if client is None or options.escalated:
            return predictions
        rows = [row for row, one in enumerate(predictions) if isinstance(one, AbstainedLabel)]
        if not rows:
            return predictions
        call = partial(client.predict_examples, [examples[row] for row in rows], top_k)
        found = await self._called(call, options)
        labels = [one for one in found if isinstance(one, SingleLabel)]
        model.scheduler.statistics.record_escalation(len(labels), len(rows) - len(found))
        for row, one in zip(rows, found, strict=False):
            if isinstance(one, SingleLabel):
                predictions[row] = EscalatedLabel(
                    label=one.label, score=one.score, scores=one.scores, truncated=one.truncated
                )
        return predictions

    async def _called(
        self, call: Callable[[], list[Prediction]], options: RequestOptions
    ) -> list[Prediction]:
        """Return the predictions of the other server; none if it fails."""
        left_s = self._timeout_s if options.left_s is None else options.left_s
        if left_s <= 0 or time.monotonic() < self._paused_until_s:
            return []
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.wait_for(future, min(left_s, self._timeout_s))
        except InputError as error:  # the next request may be valid
            log.warning("the server of escalation.url has refused a request: %s", error)
        except TimeoutError:
            if left_s >= self._timeout_s:  # else it is the deadline of this request
                self._pause(f"no response in {self._timeout_s:g} s")
        except PipeError as error:
            self._pause(error)
        return []

    def _pause(self, error: object) -> None:
        self._paused_until_s = time.monotonic() + PAUSE_S
        log.warning("the server of escalation.url is not asked for %g s: %s", PAUSE_S, error)

    def close(self) -> None:
        """Stop to ask the other server."""
        if self._client is not None:
            self._client.close()
        self._threads.shutdown(wait=False)
