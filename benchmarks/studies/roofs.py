"""Measure the peak compute rate of a runtime and the memory bandwidth of this machine."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from pipework.benchmarks.studies.matmul_graph import EncoderShape, MatmulGraph
from pipework.errors import ConfigError
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.machine import cpu_limit
from pipework.run_folder.engine_record import EngineFormat, Layout, Variant
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines import open_engine
from pipework.text.encoding import Encoding

# Wide layers and many tokens in short rows, so that dense layers dominate the time.
LARGE = EncoderShape(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=1, num_attention_heads=16
)
ROWS, WIDTH = 64, 32
CALLS = 5
GIGA = 1e9


def roof_name(variant: Variant) -> str:
    """Return the name of an engine's roof: runtime and arithmetic."""
    scaling = () if variant.scaling is None else (variant.scaling.value,)
    return " ".join((variant.format, variant.precision, *scaling))


def roof_gflops(variant: Variant, manifest: Manifest) -> float:
    """Return the peak rate of a variant on this machine, in 10^9 operations per second.

    Raises:
        ConfigError: it is a TensorRT variant.
    """
    padded = _padded(variant)
    graph = MatmulGraph(
        encoder=LARGE,
        variant=padded,
        type_ids=manifest.input.type_ids,
        first_only=False,
        classes=len(manifest.task.labels),
    )
    row = Encoding(ids=np.zeros(WIDTH, np.int32), type_ids=np.zeros(WIDTH, np.int8))
    with (
        TemporaryDirectory() as folder,
        open_engine(write_graph(graph, Path(folder)), padded, manifest, whole=True) as engine,
    ):
        engine.infer([row] * ROWS)  # warm-up: the runtime compiles for the shape
        times_s = []
        for _ in range(CALLS):
            start_s = time.perf_counter()
            engine.infer([row] * ROWS)
            times_s.append(time.perf_counter() - start_s)
    return graph.flops(ROWS, WIDTH, ROWS) / min(times_s) / GIGA


def _padded(variant: Variant) -> Variant:
    """Return the variant with the same arithmetic in the padded layout."""
    return Variant(
        format=variant.format,
        precision=variant.precision,
        layout=Layout.PADDED,
        scaling=variant.scaling,
    )


def write_graph(graph: MatmulGraph, folder: Path) -> Path:
    """Write a matmul graph in the file format of its runtime; return the path.

    Raises:
        ConfigError: it is of a TensorRT variant.
    """
    path = folder / "matmul_graph.onnx"
    graph.write(path)
    if graph.variant.format is EngineFormat.ONNX:
        return path
    if graph.variant.format is EngineFormat.TENSORRT:
        message = "expected an ONNX or OpenVINO engine, found a TensorRT engine"
        raise ConfigError(message, "select other engines with --engine")
    onnx_to_openvino(path, path.with_suffix(".xml"), graph.compute_precision)
    return path.with_suffix(".xml")


# Like the copy kernel of STREAM (McCalpin 1995, https://www.cs.virginia.edu/stream/): bytes read
# and written are counted, and the best of several repetitions is reported.

MIB = 256  # size of each of the two arrays: several times the last-level cache
REPEATS = 8


def bandwidth_gb_s() -> float:
    """Return the peak rate at which all cores together copy memory, in 10^9 bytes per second."""
    threads = cpu_limit()
    size = MIB * 2**20 // 8 // threads
    parts = [(np.ones(size), np.zeros(size)) for _ in range(threads)]
    moved = sum(source.nbytes + copy.nbytes for source, copy in parts)
    with ThreadPoolExecutor(threads) as pool:
        times_s = [_copy_s(pool, parts) for _ in range(REPEATS)]
    return moved / min(times_s) / GIGA


def _copy_s(
    pool: ThreadPoolExecutor, parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> float:
    start_s = time.perf_counter()
    list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), parts))  # NumPy releases the GIL
    return time.perf_counter() - start_s
