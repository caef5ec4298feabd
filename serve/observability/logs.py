"""Log format of the server: one line per record on stderr, as text or JSON, with the request id.

Request texts and headers are never logged, because they contain user data and API keys.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from pipework.serve.config import LogFormat, LogSettings
from pipework.serve.request.context import RequestContext, current_request

TEXT = "%(asctime)s %(levelname)s %(message)s%(of_request)s"
log = logging.getLogger(__name__)


def set_up_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Configure the root logger of this process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(_add_request)
    match settings.format:
        case LogFormat.TEXT:
            handler.setFormatter(logging.Formatter(TEXT))
        case LogFormat.JSON:
            handler.setFormatter(JsonFormatter())
    # `force` removes earlier handlers, which would write each line a second time.
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a newline."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request: RequestContext | None = getattr(record, "request", None)
        if request is not None:
            fields["request_id"] = request.id
        if getattr(record, "finished", False) and request is not None:
            fields |= _fields(request)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def log_request(request: RequestContext) -> None:
    """Log an inference request in one line."""
    timings = request.timings.by_stage() if request.timings else {}
    stages = "".join(f" {name} {seconds * 1e3:.1f}" for name, seconds in timings.items())
    log.info(
        "%s %s %s: %s, %d texts, %.1f ms%s",
        request.endpoint,
        request.model or "-",
        request.version or "-",
        request.status,
        request.texts,
        request.elapsed_s * 1e3,
        stages and f" ({stages[1:]})",
        extra={"request": request, "finished": True},
    )


def _add_request(record: logging.LogRecord) -> bool:
    request: RequestContext | None = getattr(record, "request", None) or current_request()
    record.request = request
    record.of_request = f" [{request.id}]" if request else ""
    return True


def _fields(request: RequestContext) -> dict[str, object]:
    timings = request.timings.by_stage() if request.timings else {}
    return {
        "door": request.endpoint,
        "model": request.model,
        "version": request.version,
        "texts": request.texts,
        "status": request.status,
        "ms": round(request.elapsed_s * 1e3, 3),
        **{f"{name}_ms": round(seconds * 1e3, 3) for name, seconds in timings.items()},
    }
