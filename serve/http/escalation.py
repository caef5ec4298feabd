"""Another server answers the texts to which the model gives no label."""

import asyncio
import logging
import time
from collections.abc import Sequence
from os import environ

import httpx

from pipework.client.address import ClientOptions, ServerUrl, read, request_headers
from pipework.client.client import KEY_VARIABLE
from pipework.data.examples import Example, chunks
from pipework.errors import ConfigError, InputError, PipeError
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.predictions import (
    AbstainedLabel,
    EscalatedLabel,
    Prediction,
    SingleLabel,
    marked,
)
from pipework.wire.headers import BULK, ESCALATED, PRIORITY
from pipework.wire.schemas import PREDICT_PATH, PredictRequest, PredictResponse, TextInput

log = logging.getLogger(__name__)
CALLS = 16  # at a time
TEXTS = 32  # of a call
MOST_FAILURES = 3  # in a row, before a pause
PAUSE_S = 5.0  # then one call tries again
SHORT_S = 0.1  # a timeout below it is a deadline of the client, and no failure


class Escalation:
    """Asks another server for texts without a label, in one event loop."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Take the URL of a server, and the longest time of a call.

        Raises:
            ConfigError: the URL, the timeout or the API key is not valid.
        """
        try:
            self._url = ServerUrl.of(url)
            options = ClientOptions(timeout_s=timeout_s, key=environ.get(KEY_VARIABLE, ""))
        except ConfigError as error:
            message = f"escalation: {error}"
            raise ConfigError(message, error.hint) from error
        if self._url.grpc:
            message = f"escalation: {self._url.url}: expected http:// or https://"
            raise ConfigError(message)
        self._headers = {**request_headers(options), ESCALATED: "true"}
        self._timeout_s = timeout_s
        self._tls = httpx.create_ssl_context()
        self._calls = asyncio.Semaphore(CALLS)
        self._failures = 0
        self._paused_until_s = self._reported_s = 0.0

    async def answer(
        self,
        model: Predictor,
        examples: Sequence[Example],
        predictions: list[Prediction],
        top_k: int | None,
        options: RequestOptions,
    ) -> list[Prediction]:
        """Return the predictions with labels of the other server in place of missing ones.

        Predictions for which it does not answer in time stay as they are. This takes at most twice
        the timeout of a call, and half of the time until the deadline. After several failures, it
        is not asked for `PAUSE_S` seconds. Requests of another server are not passed on, so that
        two servers cannot ask each other for ever.
        """
        missing = [row for row, one in enumerate(predictions) if isinstance(one, AbstainedLabel)]
        if not missing or options.escalated:
            return predictions
        parts = [*chunks(missing, TEXTS)]
        calls = (self._call([examples[row] for row in part], top_k, options) for part in parts)
        answers = await asyncio.gather(*calls)
        for part, answered in zip(parts, answers, strict=True):
            for row, other in zip(part, answered, strict=False):  # none after a failure
                if isinstance(other, SingleLabel):
                    predictions[row] = marked(EscalatedLabel, other)
        labels = sum(isinstance(predictions[row], EscalatedLabel) for row in missing)
        model.scheduler.statistics.record_escalation(labels, len(missing) - sum(map(len, answers)))
        return predictions

    async def _call(
        self, examples: Sequence[Example], top_k: int | None, options: RequestOptions
    ) -> list[Prediction]:
        """Return the predictions of the other server; none if it fails, or is not asked."""
        left_s, now_s = options.left_s, time.monotonic()
        limit_s = self._timeout_s if left_s is None else min(self._timeout_s, left_s / 4)
        if limit_s <= 0 or now_s < self._paused_until_s:
            return []
        if self._failures >= MOST_FAILURES:  # this call tries again, the others are not made
            self._paused_until_s = now_s + PAUSE_S
        try:
            async with asyncio.timeout(limit_s):
                await self._calls.acquire()
        except TimeoutError:  # there are too many calls
            return []
        try:
            async with asyncio.timeout(limit_s):
                found = await self._post(examples, top_k, bulk=options.bulk)
        except (PipeError, httpx.HTTPError, TimeoutError) as error:
            self._failed(error, limit_s)
            return []
        finally:
            self._calls.release()
        self._failures, self._paused_until_s = 0, 0.0
        return found

    async def _post(
        self, examples: Sequence[Example], top_k: int | None, *, bulk: bool
    ) -> list[Prediction]:
        request = PredictRequest(
            inputs=[*map(TextInput.of, examples)],
            top_k=top_k,
            model=self._url.model,
            version=self._url.version,
        )
        headers = self._headers | ({PRIORITY: BULK} if bulk else {})
        async with httpx.AsyncClient(verify=self._tls, timeout=None) as client:  # noqa: S113  (of the caller)
            body = request.model_dump_json(exclude_none=True)
            response = await client.post(
                self._url.url + PREDICT_PATH, content=body, headers=headers
            )
        found = read(PredictResponse, response).predictions
        one_label = all(isinstance(other, SingleLabel | AbstainedLabel) for other in found)
        if len(found) != len(examples) or not one_label:
            message = f"expected {len(examples)} predictions with one label, found {len(found)}"
            raise PipeError(message if one_label else f"{message} of another kind")
        return found

    def _failed(self, error: Exception, limit_s: float) -> None:
        """Count a failure, and log at most one in `PAUSE_S` seconds."""
        now_s = time.monotonic()
        text = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            text = f"no response in {limit_s:.2g} s"
        short = isinstance(error, TimeoutError) and limit_s < min(SHORT_S, self._timeout_s)
        if not short and not isinstance(error, InputError):  # the next texts may be valid
            self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._paused_until_s = now_s + PAUSE_S
        if now_s >= self._reported_s + PAUSE_S:
            self._reported_s = now_s
            log.warning("texts stay without a label: %s: %s", self._url.url, text)
