"""The nodes and kernels that ONNX Runtime's real CUDA provider chooses for the engines."""

import pytest

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import INPUTS
from pipework.serve.engines.cuda_calls import graph_buckets
from pipework.train.model.packed_encoder import PACKABLE, VARLEN

# Operators that compute shapes; the provider leaves them to the CPU.
OF_SHAPES = {
    *("Concat", "ConstantOfShape", "Equal", "Gather", "Range", "Reshape", "Slice", "Squeeze"),
    *("Add", "Div", "Mul", "Sub", "Unsqueeze", "Where"),
}
FLASH = "flash_fwd_kernel"
# Of a layer in float16, with the version of constraints-paper-gpu.txt; see export/README.md.
LAUNCHES = {Layout.VARLEN: 13, Layout.PACKED: 24}
MOST_LAUNCHES = 14
LENGTHS = [5, 9, 30, 3]
LONGEST = 40
FAMILIES = [
    (family, layout)
    for layout in Layout
    for family in EncoderFamily
    if family in {Layout.PADDED: PACKABLE, Layout.PACKED: PACKABLE, Layout.VARLEN: VARLEN}[layout]
]


def launches(events):
    """Return the number of kernels of a call, a product of cuBLAS included."""
    return sum(kind in {"kernel", "product"} for kind, _, _ in events)


def count(events, kind, part=""):
    return sum(found == kind and part in name for found, name, _ in events)


@pytest.mark.parametrize(("family", "layout"), FAMILIES)
def test_only_shapes_are_computed_on_the_cpu(paper_gpu, engine_file, family, layout):
    file = engine_file(family, layout)
    placed, events = paper_gpu.call("tests.paper_gpu.traces:examined", file, layout, LENGTHS)
    assert placed["CUDAExecutionProvider"]["LayerNormalization"] > 0
    assert placed.get("CPUExecutionProvider", {}).keys() <= OF_SHAPES
    assert [name for _, name, _ in events].count("download") == 1  # of the logits


@pytest.fixture(scope="module")
def layer_events(paper_gpu, engine_file):
    """Return the events of calls by models of two and of three layers."""

    def events(layout, heads, **options):
        return [
            paper_gpu.call(
                "tests.paper_gpu.traces:call_events",
                engine_file(
                    EncoderFamily.BERT,
                    layout,
                    hidden_size=384,
                    intermediate_size=1536,
                    num_attention_heads=heads,
                    num_hidden_layers=layers,
                    **options,
                ),
                layout,
                LENGTHS,
            )
            for layers in (2, 3)
        ]

    return events


@pytest.mark.parametrize("heads", [12, 6])  # of 32 and 64 values
def test_attention_in_float16_is_one_flash_kernel(layer_events, heads):
    two, three = layer_events(Layout.VARLEN, heads)
    assert (count(two, "kernel", FLASH), count(three, "kernel", FLASH)) == (2, 3)
    width = 384 // heads
    assert count(three, "kernel", f"Flash_fwd_kernel_traitsILi{width}E") == 3
    assert launches(three) - launches(two) == LAUNCHES[Layout.VARLEN] <= MOST_LAUNCHES
    assert count(three, "product", "StridedBatched") == 0


def test_layers_of_float16_do_not_wait_for_each_other(layer_events):
    two, three = layer_events(Layout.VARLEN, 12)
    for kind in ("sync", "pinned", "malloc"):
        assert count(two, kind) == count(three, kind)


@pytest.mark.parametrize("layout", Layout)
def test_a_call_copies_page_locked_memory_and_waits_once(layer_events, layout):
    _, events = layer_events(layout, 12)
    # The mask of the padded layout is made from a shape, which the CPU computes.
    allowed = [8] if layout is Layout.PADDED else []
    assert [int(size) for kind, _, size in events if kind == "pageable"] == allowed
    assert count(events, "pinned", "upload") == len(INPUTS[layout]) + 2  # ids and type ids
    assert count(events, "pinned", "download") == 1
    assert [name for kind, name, _ in events if kind == "sync"] == ["stream"]
    assert events[-1][0] == "sync"


def test_calls_of_six_sizes_are_captured_as_cuda_graphs(paper_gpu, engine_file):
    """While a graph is captured, the stub refuses whatever waits for the device."""
    file = engine_file(EncoderFamily.BERT, Layout.VARLEN)
    sizes = [bucket.tokens for bucket in graph_buckets(LONGEST)]
    fits = [[LONGEST] * (tokens // LONGEST) for tokens in sizes]
    larger = [LONGEST] * (sizes[-1] // LONGEST + 1)
    calls = [call for call in [*fits, larger] for _ in range(2)]
    events = paper_gpu.call("tests.paper_gpu.traces:captured", file, calls, LONGEST)
    for first, again in zip(events[:-2:2], events[1:-2:2], strict=True):
        assert [name for kind, name, _ in first if kind == "capture"] == ["begin", "end"]
        assert launches(again) == 0
        names = [name for kind, name, _ in again if kind in {"pinned", "graph", "sync"}]
        assert names == [*["upload"] * 5, "launch", "download", "stream"]
    assert launches(events[-1]) > 0  # more tokens than the largest graph
    assert count(events[-1], "graph") == 0


def test_attention_in_float32_is_not_fused(layer_events):
    two, three = layer_events(Layout.VARLEN, 12, half=False)
    assert count(three, "kernel", FLASH) == 0
    assert count(three, "sync") > count(two, "sync")  # so `auto` builds float16 only


def test_a_misspelt_option_of_the_provider_is_refused(paper_gpu, engine_file):
    file = engine_file(EncoderFamily.BERT, Layout.PACKED)
    option = "cudnn_conv_algo_serch"
    message = paper_gpu.call("tests.paper_gpu.traces:refused", file, option)
    assert f'Unknown provider option: "{option}"' in message


def test_the_packed_layout_takes_more_launches(layer_events):
    two, three = layer_events(Layout.PACKED, 12)
    assert launches(three) - launches(two) == LAUNCHES[Layout.PACKED] > MOST_LAUNCHES
