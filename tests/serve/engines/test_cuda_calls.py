"""Calls on a GPU, with a fake of CUDA on host memory and of a session; see `tests/paper_gpu`."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cuda_calls import LARGE_TOKENS, CudaCalls, graph_buckets
from pipework.text.encoding import Encoding
from pipework.text.packing import OFFSET, concatenate
from pipework.text.padding import Padding

LONGEST = 16


class FakeBinding:
    """Inputs and the output by address, as of onnxruntime."""

    def __init__(self):
        self.inputs, self.output, self.own = {}, None, None

    def bind_input(self, name, device, number, dtype, shape, address):
        assert (device, number) == ("cuda", 0)
        self.inputs[name] = (dtype, tuple(shape), address)

    def bind_output(self, name, device, number, dtype=None, shape=None, address=None):
        assert (name, device, number) == ("logits", "cuda", 0)
        self.output = None if address is None else (dtype, shape, address)

    def get_outputs(self):
        _, shape, address = self.output or self.own
        return [SimpleNamespace(shape=lambda: list(shape), data_ptr=lambda: address)]


class FakeSession:
    """Computes the first token of each text, times 1, 2 and 3."""

    def __init__(self, cuda):
        self.cuda, self.calls = cuda, []

    def io_binding(self):
        return FakeBinding()

    def run_with_iobinding(self, binding, options):
        self.cuda.cudaStreamSynchronize(7)  # the session computes on the stream of the copies
        arrays = {name: read(*one) for name, one in binding.inputs.items()}
        ids, texts = arrays["input_ids"].ravel(), arrays["text_index"][:, 0]
        logits = (ids[texts][:, None] * [1.0, 2.0, 3.0]).astype(np.float32)
        if binding.output is None:
            self.kept = logits
            binding.own = (np.float32, logits.shape, logits.ctypes.data)
        else:
            assert binding.output[1] == logits.shape
            read(*binding.output)[...] = logits
        entries = ("gpu_graph_id", "memory.enable_memory_arena_shrinkage")
        places = {name: address for name, (*_, address) in binding.inputs.items()}
        self.calls.append((*(entry(options, name) for name in entries), places, binding.output))


def read(dtype, shape, address):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype).reshape(shape)


def entry(options, name):
    try:
        return options.get_run_config_entry(name)
    except RuntimeError:
        return ""


def arrays_of(lengths, buckets=()):
    texts = [
        Encoding(ids=np.full(length, number, np.int32), type_ids=None)
        for number, length in enumerate(lengths, start=1)
    ]
    bucket = next((one for one in buckets if one.holds(lengths)), None)
    padding = Padding(pad_id=0, type_ids=False)
    return concatenate(texts, padding, first_only=True, bucket=bucket)


def expected(texts):
    return (np.arange(1, texts + 1)[:, None] * [1, 2, 3]).tolist()


@pytest.fixture
def session(gpu):
    return FakeSession(gpu.cuda)


def test_a_batch_is_cut_into_full_calls():
    buckets = graph_buckets(LONGEST)
    collate = Collate(
        layout=Layout.VARLEN,
        padding=Padding(pad_id=0, type_ids=False),
        spans=False,
        buckets=buckets,
    )
    texts = [Encoding(ids=np.ones(10, np.int32), type_ids=None)] * 1700  # 17,000 tokens
    sizes = [feed.arrays["input_ids"].size for feed in collate.feeds(texts)]
    assert sizes == [16_384, 1024]


def test_calls_of_any_size_return_their_logits(session):
    with CudaCalls() as calls:
        assert calls.options == {"user_compute_stream": "7"}
        for lengths in ([3, 1], [2, 9, 4, 4], [5]):
            logits = calls.run(session, arrays_of(lengths))
            assert logits.tolist() == expected(len(lengths))
    assert [number for number, *_ in session.calls] == ["-1"] * 3
    assert session.cuda.kept == {}  # closed


def test_calls_of_a_bucket_have_its_graph_and_constant_addresses(session):
    buckets = graph_buckets(LONGEST)
    with CudaCalls(buckets) as calls:
        assert calls.options["enable_cuda_graph"] == "1"
        for lengths in ([3, 1], [2, 9, 4], [LONGEST] * 40, [1], [LONGEST + 1], [2, 2]):
            logits = calls.run(session, arrays_of(lengths, buckets))
            assert logits.tolist() == expected(len(lengths))
    numbers = [number for number, *_ in session.calls]
    # The first call gives the number of logits; 640 tokens; a text that is too long for a graph.
    assert numbers == ["-1", "0", "1", "0", "-1", "0"]
    first, *again = (places for number, *places in session.calls if number == "0")
    assert again == [first, first]


def test_the_offsets_of_a_graph_are_copied_once(session, monkeypatch):
    buckets, sizes = graph_buckets(LONGEST), []
    copy = session.cuda.cudaMemcpyAsync

    def counted(*given):
        sizes.append(given[2])
        return copy(*given)

    monkeypatch.setattr(session.cuda, "cudaMemcpyAsync", counted)
    arrays = arrays_of([3, 1], buckets)
    with CudaCalls(buckets) as calls:
        for _ in range(3):
            sizes.clear()
            calls.run(session, arrays)
    others = [array.nbytes for name, array in arrays.items() if name != OFFSET]
    assert sizes == [*others, 4 * 3 * buckets[0].inputs]  # and the logits


def test_memory_of_a_large_call_is_returned_unless_graphs_use_it(session):
    for buckets, expected_entry in (((), "gpu:0"), (graph_buckets(LONGEST), "")):
        with CudaCalls(buckets) as calls:
            for tokens in (LARGE_TOKENS, LARGE_TOKENS + 1):
                calls.run(session, arrays_of([tokens]))
        assert [shrink for _, shrink, *_ in session.calls[-2:]] == ["", expected_entry]
