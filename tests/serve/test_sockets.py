import pytest

from pipework.errors import ConfigError
from pipework.serve.sockets import ListenAddress, address_text


def test_equal_http_and_grpc_ports_are_rejected() -> None:
    with pytest.raises(ConfigError, match="--port and --grpc-port are both 8001"):
        ListenAddress(port=8001)
    ListenAddress(port=0, grpc_port=0)


def test_an_address_is_written_as_in_a_url() -> None:
    assert address_text("localhost", 80) == "localhost:80"
    assert address_text("::1", 80) == "[::1]:80"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("10.0.0.1", "127.0.0.1"),
        ("topics.example", "127.0.0.1"),
        ("::", "::1"),
        ("127.0.0.2", "127.0.0.2"),
        ("localhost", "localhost"),
    ],
)
def test_grpc_listens_on_this_machine_unless_it_may_be_public(
    host: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = ListenAddress(host=host)
    assert address.grpc_host(public=True) == host
    assert not caplog.messages
    assert address.grpc_host(public=False) == expected
    warnings = [line for line in caplog.messages if "security.public_grpc=true" in line]
    assert len(warnings) == (host != expected)
