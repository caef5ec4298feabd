"""Runs and servers of the tests of serving, which the tests of the client use too."""

from tests.serve.conftest import (
    entity_run,
    launch,
    make_run,
    multi_run,
    pair_run,
    regression_run,
    run,
    server,
    slow_run,
    start_server,
)

__all__ = [
    "entity_run",
    "launch",
    "make_run",
    "multi_run",
    "pair_run",
    "regression_run",
    "run",
    "server",
    "slow_run",
    "start_server",
]
