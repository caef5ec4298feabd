"""The package `tensorrt`: NVIDIA's bindings check each call, and a fake computes its result."""

from tensorrt_bindings import *  # noqa: F403
from tensorrt_bindings import __version__  # noqa: F401

from tests.paper_gpu.checked_tensorrt import Builder, OnnxParser, Runtime  # noqa: F401
