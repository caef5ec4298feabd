"""Engines of onnxruntime: an engine is the ONNX graph itself, with the kernel of its layout."""

from pathlib import Path

from pipework.export.convert.converter import ConvertedGraph, Converter
from pipework.export.convert.fusions import operators
from pipework.export.convert.varlen import use_kernel
from pipework.export.rows.run_rows import RunRows
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineBuild, Layout, Precision, Variant
from pipework.serve.engines.cuda import Gpu
from pipework.serve.engines.onnxruntime import GPU_TARGET, OnnxRuntime, cuda_gpu

# The CUDA kernel of MatMulInteger reads int8 only, and the layers with dynamic scales read uint8:
# https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md
WITHOUT_CUDA_KERNEL = ("MatMulInteger",)
ONNX_FP32 = Variant(format=OnnxRuntime.format, precision=Precision.FP32, layout=Layout.PADDED)


class OnnxConverter(Converter):
    """Keeps the graph; a varlen graph is kept in addition, because it runs on any machine."""

    runtime = OnnxRuntime()
    runs_graphs = True
    unsigned = True

    def convert(
        self, graph: ConvertedGraph, out: Path, run_rows: RunRows, progress: Progress
    ) -> EngineBuild:
        """Rename the graph; print a warning about nodes without a CUDA kernel."""
        del run_rows
        if graph.variant.layout is Layout.VARLEN:
            use_kernel(graph.path, out)
            return graph.build.model_copy(update={"target": GPU_TARGET})
        graph.path.rename(out)
        if graph.variant.precision is Precision.INT8:
            warning = cuda_warning(out, cuda_gpu())
            if warning is not None:
                progress.note(f"{graph.variant.label}: {warning}")
        return graph.build


def cuda_warning(graph: Path, gpu: Gpu | None) -> str | None:
    """Return a warning about nodes of a graph that onnxruntime does not compute on a GPU."""
    counts = operators(graph)
    nodes = " and ".join(f"{counts[name]} {name}" for name in WITHOUT_CUDA_KERNEL if counts[name])
    if gpu is None or not nodes:
        return None
    return (
        f"onnxruntime has no CUDA kernel for {nodes} nodes: {gpu.name} waits for the CPU; "
        "use --precision fp16, or --to tensorrt --precision int8"
    )
