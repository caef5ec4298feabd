"""What a server logs: a line each on stderr, as text or as JSON, with the id of the request.

Neither texts nor headers are logged, so neither what people wrote nor their keys.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from pipework.serve.config import LogFormat, LogSettings
from pipework.serve.request.context import Observed, current

TEXT = "%(asctime)s %(levelname)s %(message)s%(of_request)s"
log = logging.getLogger(__name__)


def set_up_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Have all that this process logs written in the form that the settings ask for.

    Args:
        settings: the form.
        stream: where to; None for stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(_add_request)
    match settings.format:
        case LogFormat.TEXT:
            handler.setFormatter(logging.Formatter(TEXT))
        case LogFormat.JSON:
            handler.setFormatter(JsonLines())
    # What was there before would write each line a second time.
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """A record as an object of JSON on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request: Observed | None = getattr(record, "request", None)
        if request is not None:
            fields["request_id"] = request.id
        if getattr(record, "finished", False) and request is not None:
            fields |= _fields(request)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class RequestLog:
    """Logs one line for each request that asks a model."""

    def finished(self, request: Observed) -> None:
        """Log it."""
        spent = request.stages.named() if request.stages else {}
        stages = "".join(f" {name} {seconds * 1e3:.1f}" for name, seconds in spent.items())
        log.info(
            "%s %s %s: %s, %d texts, %.1f ms%s",
            request.door,
            request.model or "-",
            request.version or "-",
            request.status,
            request.texts,
            request.elapsed_s * 1e3,
            stages and f" ({stages[1:]})",
            extra={"request": request, "finished": True},
        )

    def close(self) -> None:
        """Keep nothing back: each line was written at once."""


def _add_request(record: logging.LogRecord) -> bool:
    request: Observed | None = getattr(record, "request", None) or current()
    record.request = request
    record.of_request = f" [{request.id}]" if request else ""
    return True


def _fields(request: Observed) -> dict[str, object]:
    spent = request.stages.named() if request.stages else {}
    return {
        "door": request.door,
        "model": request.model,
        "version": request.version,
        "texts": request.texts,
        "status": request.status,
        "ms": round(request.elapsed_s * 1e3, 3),
        **{f"{name}_ms": round(seconds * 1e3, 3) for name, seconds in spent.items()},
    }
