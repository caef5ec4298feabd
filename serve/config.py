"""What can be set of a server, by `pipe serve --set`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pipework.serve.text_tensors import MAX_CHARACTERS
from pipework.settings import AboveZero, NotNegative, Positive, Settings

Characters = Annotated[int, Field(ge=1, le=MAX_CHARACTERS)]


class QueueSettings(Settings):
    """How large batches are, and what may wait for them.

    Attributes:
        batch_tokens: tokens of a batch, without padding. More tokens let like lengths meet (16 %
            over the ideal cost at 1024, 21 % at 512, 26 % at 256), and let a small request wait
            longer for the batch before it.
        tokens: once so many tokens wait, further requests are refused. (A request is not refused
            for its own size: `limits` are for that.)
        requests: once so many requests wait, further ones are refused.
        instances: engines of each model; on a CPU each gets its share of the processors. None
            for two on a CPU that has two processors: what one of them does between its calls does
            not stop the other (README, Results, Serving). One holds the weights once, and answers a
            request that comes alone with all processors. On several GPUs start a server for each,
            with CUDA_VISIBLE_DEVICES.
    """

    batch_tokens: Positive = 1024
    tokens: Positive = 65_536
    requests: Positive = 1024
    instances: Positive | None = None


class LimitSettings(Settings):
    """The most of one request, and of connections.

    Attributes:
        body_bytes: of a request.
        texts: of a request.
        characters: of a text; 100,000 is also the most, through whichever door it comes.
        connections: at a time, of HTTP; further ones are answered 503. More than `queue.requests`,
            so that a full queue, which says when to come again, is met first.
        header_s: seconds for the head of a request to come, and before it for TLS to be agreed.
        body_s: seconds for its body to come, and for the answer to be read.
    """

    body_bytes: Positive = 8 * 2**20
    texts: Positive = 1024
    characters: Characters = MAX_CHARACTERS
    connections: Positive = 4096
    header_s: AboveZero = 10.0
    body_s: AboveZero = 60.0


class ModelSettings(Settings):
    """Which models are served.

    Attributes:
        control: whether clients may load and unload models.
        poll_s: seconds after which a repository is looked at for new versions; 0 for never.
    """

    control: bool = False
    poll_s: NotNegative = 2.0


class SecuritySettings(Settings):
    """Who may ask, and how what is said is hidden from others.

    Attributes:
        keys_file: a file with an API key a line; beside it those of PIPEWORK_API_KEYS count,
            separated by commas. With none anybody may ask.
        certificate: a PEM file; with it and `private_key` both doors speak TLS only.
        private_key: a PEM file.
    """

    keys_file: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None


class LogFormat(StrEnum):
    """How lines of the log look."""

    TEXT = "text"
    JSON = "json"


class LogSettings(Settings):
    """What is logged on stderr.

    Attributes:
        format: text for people, or json, an object a line, for what collects logs.
        requests: whether each request that asks a model is logged: its id, door, model, version,
            number of texts, status and the time of each stage; never its texts.
    """

    format: LogFormat = LogFormat.TEXT
    requests: bool = False


class ServeSettings(Settings):
    """How models are served.

    Attributes:
        limits: of requests.
        queue: before the engines.
        models: which are served.
        security: who may ask.
        logs: what is logged.
        grace_s: seconds that requests have to end after SIGTERM; Kubernetes grants 30.
        triton_url: host:port of a tritonserver's gRPC door, for models whose engine it runs.
        traces: whether OpenTelemetry traces are sent, as its own variables (OTEL_...) say.
    """

    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    models: ModelSettings = ModelSettings()
    security: SecuritySettings = SecuritySettings()
    logs: LogSettings = LogSettings()
    grace_s: Positive = 30
    triton_url: str = ""
    traces: bool = False
