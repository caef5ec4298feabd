"""Asks a server: ours, or another of the Open Inference Protocol. Loads no server and no engine."""

from pipework.serve.client.client import Client

__all__ = ["Client"]
