"""Client for `pipe serve` and other servers of the Open Inference Protocol.

Importing it loads neither server nor engines.
"""

from pipework.client.client import Client

__all__ = ["Client"]
