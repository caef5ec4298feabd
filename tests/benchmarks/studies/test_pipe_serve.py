"""`pipe serve` is ready when the context begins, and stopped when it ends."""

import signal
from pathlib import Path

import httpx
import pytest

from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.errors import NotReadyError


def test_the_server_is_ready_and_stopped_at_the_end(exported_run):
    handler = signal.getsignal(signal.SIGTERM)
    with running_server(exported_run) as server:
        assert httpx.get(f"{server.url}/v2/health/ready", trust_env=False).status_code == 200
        assert set(server.addresses) == {"http", "grpc"}
        assert Path(f"/proc/{server.pid}").exists()
    assert not Path(f"/proc/{server.pid}").exists()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_run_that_cannot_be_served_is_reported(tmp_path, capfd):
    with pytest.raises(NotReadyError, match="the server did not start"), running_server(tmp_path):
        pass
    assert str(tmp_path) in capfd.readouterr().err
