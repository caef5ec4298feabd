"""Settings of the server (`pipe serve --set`)."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field

from pipework.errors import TooLargeError
from pipework.run_folder.change_limits import ChangeLimits
from pipework.serve.engines.base import CollatedEngine
from pipework.settings import AboveZero, NotNegative, Positive, Settings
from pipework.wire.schemas import SPLIT_HINT
from pipework.wire.text_tensors import MAX_CHARACTERS

# On a CPU; cost above the ideal without padding: 16 % at 1024, 21 % at 512, 26 % at 256.
BATCH_TOKENS = 1024
Share = Annotated[float, Field(gt=0, le=1)]
Characters = Annotated[int, Field(ge=1, le=MAX_CHARACTERS)]


class QueueSettings(Settings):
    """Batch size and limits of the queue.

    Attributes:
        batch_tokens: maximum tokens per batch, without padding; default: 1,024 on a CPU; on a GPU
            the size from which calls gain no speed, measured when the engine is opened, up to
            16,384. A larger batch wastes less time on padding, because more texts of similar length
            meet, but a small request waits longer for the batch in progress.
        tokens: maximum tokens in the queue; further requests are rejected. The size of a single
            request is not checked here (see `limits`). Workers share this number and `requests`.
        requests: maximum accepted requests without an answer; further requests are rejected.
        bulk_share: largest share of the queue for bulk requests. An interactive request that finds
            the queue full displaces a bulk request, which gets 429.
        client_share: largest share of the queue for a client (API key, else address) while others
            wait. In a full queue, a request of another client displaces its last request.
        instances: engines per model and worker; default: two on a CPU with at least two cores,
            else one. Engines on a CPU share its cores. A single engine needs memory for the weights
            only once and computes a single request on all cores.
        stuck_s: seconds that an engine may take for a batch. After this time the server is not
            ready, and after twice this time its process ends, to be replaced. Default: 10 times the
            slowest measured batch, or the expected time if that is longer; at least 5, and 60 for
            the first batch.
    """

    batch_tokens: Positive | None = None
    tokens: Positive = 65_536
    requests: Positive = 1024
    bulk_share: Share = 0.5
    client_share: Share = 0.5
    # Two engines overlap the work between engine calls.
    instances: Positive | None = None
    stuck_s: AboveZero | None = None

    def for_engine(self, engine: CollatedEngine) -> "QueueSettings":
        """Return the settings with the batch size of an engine."""
        tokens = self.batch_tokens
        if tokens is None:
            tokens = engine.collate.costs.most_tokens if engine.on_gpu else BATCH_TOKENS
        return self.model_copy(update={"batch_tokens": tokens})


class CacheSettings(Settings):
    """The response cache.

    Attributes:
        bytes: maximum bytes of the outputs that each version keeps of the inputs that were used
            last, in each worker, such as 64MB or 64MiB; 0 for no cache.
    """

    bytes: ByteSize = ByteSize(0)


class LimitSettings(Settings):
    """Limits of a request and of connections.

    Attributes:
        body_bytes: maximum bytes of a request body.
        texts: maximum texts per request.
        characters: maximum characters per text, over HTTP and gRPC; at most 100,000.
        received_bytes: maximum bytes of all bodies that are being received at a time, each over
            HTTP and over gRPC; further bodies get 429. The number of open gRPC streams is at most
            half of `received_bytes / body_bytes`.
        processed_bytes: maximum bytes of memory for the texts of all requests that are being
            processed at a time; further requests get 429. A request counts with twice the size of
            its decompressed body, over /v1 with its texts as soon as they are parsed. If no other
            request is being processed, a request of any size is. The responses that clients have
            not read have a limit of the same size; clients that exceed it are disconnected.
        connections: maximum HTTP connections at a time. An idle connection is closed for a new one;
            if none is idle, requests on further connections get 503. A quarter of this number is
            the maximum of gRPC connections; further ones are closed. Needs three open files
            (ulimit -Hn) per connection.
        header_s: timeout in seconds for the head of a request, and for the TLS handshake.
        idle_s: seconds until a connection without a request is closed. Load balancers keep
            connections for about 60 s, and would send a request on one that is being closed.
        body_s: timeout in seconds for the body of a request, and for sending the response.
    """

    body_bytes: Positive = 4 * 2**20
    texts: Positive = 1024
    characters: Characters = MAX_CHARACTERS
    received_bytes: Positive = 128 * 2**20
    processed_bytes: Positive = 16 * 2**20
    # Larger than `queue.requests`, so that overload is answered with 429 and Retry-After, not 503.
    connections: Positive = 4096
    header_s: AboveZero = 10.0
    idle_s: AboveZero = 75.0
    body_s: AboveZero = 60.0

    def check_count(self, texts: int) -> None:
        """Check the number of texts of a request.

        Raises:
            TooLargeError: there are too many; the message has the limit.
        """
        if texts > self.texts:
            message = f"expected at most {self.texts} texts, found {texts}"
            raise TooLargeError(message, SPLIT_HINT)

    def check_length(self, text: str | bytes, index: int) -> None:
        """Check the length of a text, or of a text as UTF-8 bytes.

        Raises:
            TooLargeError: it is too long; the message has its index and the limit.
        """
        if len(text) <= self.characters:  # a text has at most as many characters as bytes
            return
        length = len(text if isinstance(text, str) else text.decode(errors="replace"))
        if length > self.characters:
            message = (
                f"input {index}: expected at most {self.characters} characters, found {length}"
            )
            raise TooLargeError(message, "split the text into several texts")


class EscalationSettings(Settings):
    """Another server, which is asked for the texts that the model gives no label.

    Attributes:
        url: its URL, with /v2/models/NAME at the end if it has several models; default: none. The
            API key is PIPEWORK_API_KEY.
        timeout_s: timeout of a request in seconds; then the texts have no label.
    """

    url: str | None = None
    timeout_s: AboveZero = 2.0


class EngineSettings(ChangeLimits):
    """The engine of a run folder.

    By default, it is the fastest engine within the limits that runs on this machine.

    Attributes:
        name: name of an engine, as shown by `pipe show`; the limits are ignored.
        recheck_s: seconds between two checks of an idle engine on a few reference rows; 0 for no
            checks. After a wrong result the version is not ready until it is opened again.
    """

    name: str | None = None
    recheck_s: NotNegative = 60.0


class RepositorySettings(Settings):
    """Loading of models.

    Attributes:
        control: whether clients may load and unload models.
        change_s: seconds until a client gets 503 if a model has not been loaded or unloaded; the
            error names the process.
        poll_s: interval in seconds for checking a repository for new versions; 0 for never.
    """

    control: bool = False
    change_s: AboveZero = 300.0
    poll_s: NotNegative = 2.0


class SecuritySettings(Settings):
    """API keys, TLS, and who may connect.

    Attributes:
        keys_file: file with one API key per line. The keys in the environment variable
            PIPEWORK_API_KEYS, separated by commas, are valid too. Without any keys all requests are
            allowed.
        certificate: PEM file; if it and `private_key` are set, HTTP and gRPC require TLS.
        private_key: PEM file.
        hosts: names that the Host header of an HTTP request may have, besides addresses and
            localhost; default: none on a loopback address, which protects from web pages (DNS
            rebinding), else any. Health checks may have any.
        public_grpc: whether gRPC listens on the address of `--host` if other machines can reach it;
            else on 127.0.0.1. Only behind a proxy that limits headers, or in a network without
            hostile clients: these can exhaust the memory.
    """

    keys_file: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    hosts: tuple[str, ...] | None = None
    public_grpc: bool = False


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogSettings(Settings):
    """Logs on stderr.

    Attributes:
        format: text, or json for log collectors (one object per line).
        requests: whether to log each inference request: id, endpoint, model, version, number of
            texts, status and stage timings, but never its texts.
    """

    format: LogFormat = LogFormat.TEXT
    requests: bool = False


class ServeSettings(Settings):
    """Settings of the server.

    Attributes:
        limits: limits of requests and connections.
        queue: batch size and limits of the queue.
        cache: the response cache.
        escalation: another server for texts without a label.
        engine: choice of the engine of a run folder.
        models: loading of models.
        security: API keys and TLS.
        logs: log format.
        grace_s: seconds from SIGTERM to the end of the process; Kubernetes allows 30.
        traces: whether to send OpenTelemetry traces; configured by the OTEL_* variables.
    """

    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    cache: CacheSettings = CacheSettings()
    escalation: EscalationSettings = EscalationSettings()
    engine: EngineSettings = EngineSettings()
    models: RepositorySettings = RepositorySettings()
    security: SecuritySettings = SecuritySettings()
    logs: LogSettings = LogSettings()
    grace_s: Positive = 30
    traces: bool = False
