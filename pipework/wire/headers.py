"""Names and values of the headers and metadata that clients and servers exchange."""

TIMEOUT = "X-Request-Timeout-Ms"
PRIORITY = "X-Priority"
ESCALATED = "X-Escalated"  # of requests of a server, which are not passed on to a further server
HTTP_STATUS = "http-status"  # of gRPC, whose codes do not tell a request that is too large
INTERACTIVE, BULK = "interactive", "bulk"
MAX_TIMEOUT_MS = 86_400_000.0
