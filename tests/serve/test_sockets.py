import pytest

from pipework.errors import ConfigError
from pipework.serve.sockets import ListenAddress


def test_equal_http_and_grpc_ports_are_rejected() -> None:
    with pytest.raises(ConfigError, match="--port and --grpc-port are both 8001"):
        ListenAddress(port=8001)
    ListenAddress(port=0, grpc_port=0)
