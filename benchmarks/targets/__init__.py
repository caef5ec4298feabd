"""Targets of the load generator: one class per request protocol."""

import re
from urllib.parse import unquote

from pipework.benchmarks.targets.address import TargetAddress
from pipework.benchmarks.targets.http import RestTarget
from pipework.benchmarks.targets.protocol import ProtocolTarget
from pipework.benchmarks.targets.seam import Caller, Target
from pipework.benchmarks.targets.template import TemplateTarget
from pipework.errors import ConfigError
from pipework.wire.schemas import PREDICT_PATH

__all__ = ["Caller", "Target", "is_url", "target"]
MODEL_PATH = re.compile(r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/infer)?")
GRPC_PATH = re.compile(r"/(?P<model>[^/]+)(/(?P<version>[^/]+))?")
SCHEMES = ("http", "https", "grpc", "grpcs")


def is_url(target: str) -> bool:
    """Return whether a target is a URL; otherwise it is the path of a run folder."""
    return target.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def target(url: str, template: str | None = None) -> Target:
    """Return the target of a URL.

    Supported are http://HOST:PORT of `pipe serve`; models of the Open Inference Protocol over HTTP
    (http://HOST:PORT/v2/models/NAME[/versions/VERSION]) or gRPC (grpc://HOST:PORT/NAME[/VERSION]);
    and any URL with a template.

    Raises:
        ConfigError: the URL is invalid, or its path is unknown and no template is given.
    """
    address = TargetAddress.of(url)
    if template is not None:
        return TemplateTarget(address=address, template=template)
    if address.scheme.startswith("grpc"):
        return _grpc(address)
    if match := MODEL_PATH.fullmatch(address.path):
        return ProtocolTarget(address=address, **_model_and_version(match))
    if address.path in {"", PREDICT_PATH}:
        return RestTarget(address=address)
    message = f"{address.display_url}: unknown endpoint {address.path}"
    raise ConfigError(message, 'pass --template with its request format: \'{"inputs": "$TEXTS"}\'')


def _grpc(address: TargetAddress) -> Target:
    from pipework.benchmarks.targets.grpc import GrpcTarget  # noqa: PLC0415  (heavy)

    match = MODEL_PATH.fullmatch(address.path) or GRPC_PATH.fullmatch(address.path)
    if match is None:
        message = f"{address.display_url} has no model name"
        raise ConfigError(message, f"expected {address.scheme}://{address.host_port}/NAME")
    return GrpcTarget(address=address, **_model_and_version(match))


def _model_and_version(match: re.Match[str]) -> dict[str, str]:
    return {name: unquote(match[name] or "") for name in ("model", "version")}
