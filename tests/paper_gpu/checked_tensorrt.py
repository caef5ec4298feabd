"""Objects of TensorRT that are checked by NVIDIA's bindings and computed by a fake.

The bindings raise an error for an unknown name, and for arguments of another number, name or type.
Their own objects come from `tensorrt_stub.c` and compute nothing, so that a fake returns the
results; if the result of the bindings is None, a number or a bool, that of the fake has its type.
"""

import json
import tempfile
import weakref
from functools import partial
from inspect import getattr_static
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import tensorrt_bindings as trt

from tests.serve.engines.conftest import FakeCuda, FakeTensorRt

PLAIN = (bool, int, type(None))
RESULTS = {
    "input": trt.TensorIOMode.INPUT,
    "output": trt.TensorIOMode.OUTPUT,
    np.dtype(np.float32): trt.float32,
    np.dtype(np.int64): trt.int64,
}
USED: set[str] = set()  # members of TensorRT's classes
RELEASED: list[str] = []  # classes of objects that the bindings released, and functions of CUDA


class RecordingCuda(FakeCuda):
    """Records when memory on the device is freed."""

    def cudaFree(self, address):  # noqa: N802
        RELEASED.append("cudaFree")
        return super().cudaFree(address)


CUDA = RecordingCuda()


class Checked:
    """An object of the bindings, which checks calls, and one of a fake, which computes them."""

    def __init__(self, real, fake):
        vars(self).update(real=real, fake=fake)
        weakref.finalize(real, RELEASED.append, type(real).__name__)

    def _member(self, name):
        """Return a member of the class of the bindings."""
        USED.add(f"{type(self.real).__name__}.{name}")
        return getattr_static(type(self.real), name)

    def __getattr__(self, name):
        if isinstance(self._member(name), property):
            return joined(None, getattr(self.fake, name))
        return partial(checked, getattr(self.real, name), getattr(self.fake, name))

    def __setattr__(self, name, value):
        self._member(name)
        setattr(self.real, name, value)
        setattr(self.fake, name, value)


def checked(real, fake, *arguments, **options):
    """Call a function of the bindings and a function of the fake; return both results as one."""
    found, computed = (
        function(
            *(half(one, part) for one in arguments),
            **{name: half(one, part) for name, one in options.items()},
        )
        for part, function in (("real", partial(attempted, real)), ("fake", fake))
    )
    assert type(found) is type(computed) or not isinstance(found, PLAIN), (found, computed)
    return joined(found, computed)


def half(value, part):
    return vars(value)[part] if isinstance(value, Checked) else value


def attempted(function, *arguments, **options):
    """Return the result of a function of the bindings, or the error that the stub's result is."""
    try:
        return function(*arguments, **options)
    except (RuntimeError, UnicodeDecodeError) as error:
        return error


def joined(real, fake):
    """Return a result as the bindings would return it."""
    if isinstance(fake, str | np.dtype):
        return RESULTS.get(fake, fake)
    if isinstance(fake, tuple):
        return trt.Dims(fake) if isinstance(fake[0], int) else [trt.Dims(one) for one in fake]
    return fake if isinstance(fake, (*PLAIN, bytes)) else Checked(real, fake)


class FakeConfig:
    """The settings of a build."""

    def __init__(self):
        self.profiles = []
        self.progress_monitor = None

    def set_memory_pool_limit(self, _pool, _size):
        pass

    def clear_flag(self, _flag):
        pass

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content):
        if content == b"damaged":
            return None
        return SimpleNamespace(content=content, serialize=lambda: content + b"measured")

    def set_timing_cache(self, cache, ignore_mismatch):
        return ignore_mismatch or cache.content != b"of another GPU"


class FakeProfile(dict):
    """The largest shapes of the inputs."""

    def set_shape(self, name, smallest, usual, largest):
        assert all(a <= b <= c for a, b, c in zip(smallest, usual, largest, strict=True))
        self[name] = largest


class FakeNetwork:
    """The tensors of a graph."""

    def parse(self, content):
        """Read a graph; one with an operator of a domain has an unknown operator."""
        self.graph = onnx.load_from_string(content)
        self.inputs = [self._tensor(one) for one in self.graph.graph.input]
        self.outputs = [self._tensor(one) for one in self.graph.graph.output]
        self.num_inputs, self.num_outputs = len(self.inputs), len(self.outputs)
        self.unknown = [node for node in self.graph.graph.node if node.domain]
        return not self.unknown

    def _tensor(self, value):
        kind = value.type.tensor_type
        shape = tuple(one.dim_value or -1 for one in kind.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        return SimpleNamespace(name=value.name, shape=shape, dtype=dtype)

    def get_input(self, number):
        return self.inputs[number]

    def get_output(self, number):
        return self.outputs[number]


class FakeParser:
    """Reads a graph into a network."""

    def __init__(self, network, _logger):
        self._network = network
        self.parse = network.parse

    def get_error(self, number):
        node = self._network.unknown[number]
        return SimpleNamespace(
            node_operator=lambda: node.op_type, node_name=lambda: node.name, desc=lambda: "unknown"
        )


class FakeBuilder:
    """Writes engines that `FakeTensorRt` opens."""

    def __init__(self, _logger):
        self.create_builder_config = FakeConfig
        self.create_optimization_profile = FakeProfile
        RELEASED.clear()  # the objects of other builders

    def create_network(self, flags):
        assert flags == 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return FakeNetwork()

    def build_serialized_network(self, network, config):
        assert "OnnxParser" not in RELEASED  # it owns the weights
        config.progress_monitor.phase_start("Building", None, 1)
        assert config.progress_monitor.step_complete("Building", 0) is True
        config.progress_monitor.phase_finish("Building")
        graph = Path(tempfile.mkdtemp()) / "model.onnx"
        onnx.save(network.graph, graph)
        return json.dumps({"graph": str(graph), "profiles": config.profiles}).encode()


def Builder(logger):  # noqa: N802  (as in TensorRT)
    return checked(trt.Builder, FakeBuilder, logger)


def OnnxParser(network, logger):  # noqa: N802
    return checked(trt.OnnxParser, FakeParser, network, logger)


def Runtime(logger):  # noqa: N802
    return checked(trt.Runtime, FakeTensorRt(CUDA).Runtime, logger)
