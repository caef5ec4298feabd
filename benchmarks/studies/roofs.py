"""What a machine multiplies at most: large products in large calls, in an engine's runtime."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from pipework.benchmarks.studies.matmul_graph import Encoder, Products
from pipework.errors import ConfigError
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.run_folder.engine_record import EngineFormat, Layout, Variant
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines import open_engine
from pipework.text.encoding import Encoding

# Wide layers on many tokens of short rows, so that nearly all is the products of dense layers.
LARGE = Encoder(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=1, num_attention_heads=16
)
ROWS, WIDTH = 64, 32
CALLS = 5
GIGA = 1e9


def roof_name(variant: Variant) -> str:
    """Return the roof that an engine stands under: its runtime and what it multiplies in."""
    scaling = () if variant.scaling is None else (variant.scaling.value,)
    return " ".join((variant.format, variant.precision, *scaling))


def roof_gflops(variant: Variant, manifest: Manifest) -> float:
    """Return the most multiplications and additions of a variant here, in 10^9 a second.

    Raises:
        ConfigError: it is of TensorRT.
    """
    padded = _padded(variant)
    products = Products(
        encoder=LARGE,
        variant=padded,
        type_ids=manifest.input.type_ids,
        first_only=False,
        classes=len(manifest.task.labels),
    )
    row = Encoding(ids=np.zeros(WIDTH, np.int32), type_ids=np.zeros(WIDTH, np.int8))
    with (
        TemporaryDirectory() as folder,
        open_engine(written(products, Path(folder)), padded, manifest, whole=True) as engine,
    ):
        engine.infer([row] * ROWS)  # a runtime compiles for a shape that it has not seen
        times_s = []
        for _ in range(CALLS):
            start_s = time.perf_counter()
            engine.infer([row] * ROWS)
            times_s.append(time.perf_counter() - start_s)
    return products.flops(ROWS, WIDTH, ROWS) / min(times_s) / GIGA


def _padded(variant: Variant) -> Variant:
    """Return the same arithmetic on padded rows."""
    return Variant(
        format=variant.format,
        precision=variant.precision,
        layout=Layout.PADDED,
        scaling=variant.scaling,
    )


def written(products: Products, folder: Path) -> Path:
    """Write products as the file that their runtime opens.

    Raises:
        ConfigError: they are of TensorRT.
    """
    path = folder / "products.onnx"
    products.write(path)
    if products.variant.format is EngineFormat.ONNX:
        return path
    if products.variant.format is EngineFormat.TENSORRT:
        message = "the products of a TensorRT engine are not measured"
        raise ConfigError(message, "name others with --engine")
    onnx_to_openvino(path, path.with_suffix(".xml"), products.computed)
    return path.with_suffix(".xml")


# After the copy of STREAM (McCalpin 1995, https://www.cs.virginia.edu/stream/), which counts what is
# read and what is written, and takes the best of several.

MIB = 256  # of each of the two arrays: several times a cache of the last level
REPEATS = 8


def bandwidth_gb_s() -> float:
    """Return the most 10^9 bytes a second that all cores together copy here."""
    threads = len(os.sched_getaffinity(0))
    size = MIB * 2**20 // 8 // threads
    parts = [(np.ones(size), np.zeros(size)) for _ in range(threads)]
    moved = sum(one.nbytes + other.nbytes for one, other in parts)
    with ThreadPoolExecutor(threads) as pool:
        times_s = [_copied_s(pool, parts) for _ in range(REPEATS)]
    return moved / min(times_s) / GIGA


def _copied_s(
    pool: ThreadPoolExecutor, parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> float:
    start_s = time.perf_counter()
    list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), parts))  # without the interpreter
    return time.perf_counter() - start_s
