"""The ports of a tritonserver, and which of its endpoints are closed."""

import socket

import pytest

from pipework.errors import ConfigError
from pipework.serve.triton.server import (
    ACCESS_HEADER,
    METRICS_OFFSET,
    RESTRICTED,
    Ports,
    ServerOptions,
)


def test_a_port_of_0_becomes_a_free_one_and_another_stays():
    doors = Ports(grpc=8001).chosen()
    assert doors.grpc == 8001
    assert len({doors.http, doors.grpc, doors.metrics} - {0}) == 3


def free_ports(distance):
    """Return a free port whose neighbour at this distance is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + distance))
            except (OSError, OverflowError):
                continue
            return port


def test_the_port_of_the_metrics_follows_the_given_port_of_http():
    http = free_ports(METRICS_OFFSET)
    assert Ports(http=http).chosen().metrics == http + METRICS_OFFSET


def test_a_given_port_that_is_taken_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            Ports(grpc=port).chosen()
    assert "another --grpc-port" in caught.value.hint


def test_the_ports_are_options_of_tritonserver():
    options = Ports(host="0.0.0.0", http=1, grpc=2, metrics=3).options()
    assert {"--http-port=1", "--grpc-port=2", "--metrics-port=3"} <= {*options}
    addresses = {option for option in options if option.endswith("-address=0.0.0.0")}
    assert addresses == {"--http-address=0.0.0.0", "--metrics-address=0.0.0.0"}
    assert "--grpc-address=127.0.0.1" in options


@pytest.mark.parametrize("control", [True, False])
def test_closed_endpoints_need_the_secret(control):
    options = ServerOptions(control=control)
    for door in ("--http-restricted-api=", "--grpc-restricted-protocol="):
        (option,) = [one for one in options.options() if one.startswith(door)]
        closed, _, named = option.removeprefix(door).partition(":")
        assert named == f"{ACCESS_HEADER}={options.secret}"
        assert {*RESTRICTED} <= {*closed.split(",")}
        assert ("model-repository" in closed.split(",")) is not control


def test_each_start_has_another_secret_and_it_is_not_shown():
    first, second = ServerOptions(), ServerOptions()
    assert first.secret != second.secret
    assert first.secret not in repr(first)


def test_only_a_lenient_server_starts_without_a_model_that_fails():
    assert "--exit-on-error=false" in ServerOptions(strict=False).options()
    assert not [one for one in ServerOptions().options() if one.startswith("--exit-on-error")]
