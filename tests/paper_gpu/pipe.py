"""`pipe` on a paper GPU, in the environment of `PaperGpu.environment`."""

from pipework.cli import main
from pipework.serve.engines import cuda
from tests.paper_gpu import cuda_runtime

if __name__ == "__main__":
    cuda._runtime = lambda: cuda_runtime  # noqa: SLF001
    main()
