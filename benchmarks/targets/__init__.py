"""What load is sent to: one kind of target for each way in which servers are asked."""

import re
from urllib.parse import unquote

from pipework.benchmarks.targets.address import Address
from pipework.benchmarks.targets.protocol import ProtocolTarget
from pipework.benchmarks.targets.rest import RestTarget
from pipework.benchmarks.targets.seam import Caller, Spent, Target, Wire
from pipework.benchmarks.targets.template import TemplateTarget
from pipework.errors import ConfigError
from pipework.serve.schemas import PREDICT_PATH

__all__ = ["Caller", "Spent", "Target", "Wire", "is_url", "target"]
MODEL = re.compile(r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/infer)?")
SHORT = re.compile(r"/(?P<model>[^/]+)(/(?P<version>[^/]+))?")
SCHEMES = ("http", "https", "grpc", "grpcs")


def is_url(given: str) -> bool:
    """Whether a target is given by a URL, rather than by the path of a run folder."""
    return given.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def target(url: str, template: str | None = None) -> Target:
    """Return the target behind a URL.

    That is HOST:PORT of `pipe serve`; a model of the Open Inference Protocol, over HTTP
    (http://HOST:PORT/v2/models/NAME, with /versions/VERSION behind it) or gRPC
    (grpc://HOST:PORT/NAME, with /VERSION behind it); or with a template any path.

    Raises:
        ConfigError: there is no such target.
    """
    address = Address.of(url)
    if template is not None:
        return TemplateTarget(address=address, template=template)
    if address.scheme.startswith("grpc"):
        return _grpc(address)
    if found := MODEL.fullmatch(address.path):
        return ProtocolTarget(address=address, **_named(found))
    if address.path in {"", PREDICT_PATH}:
        return RestTarget(address=address)
    message = f"{address.shown}: nothing is known of {address.path} and what it wants to hear"
    raise ConfigError(message, 'say it by --template, as \'{"inputs": "$TEXTS"}\'')


def _grpc(address: Address) -> Target:
    from pipework.benchmarks.targets.grpc import GrpcTarget  # noqa: PLC0415  (heavy)

    found = MODEL.fullmatch(address.path) or SHORT.fullmatch(address.path)
    if found is None:
        message = f"{address.shown} names no model"
        raise ConfigError(message, f"expected {address.scheme}://{address.at}/NAME")
    return GrpcTarget(address=address, **_named(found))


def _named(found: re.Match[str]) -> dict[str, str]:
    return {name: unquote(found[name] or "") for name in ("model", "version")}
