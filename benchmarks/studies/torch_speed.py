"""Measure torch on the texts of `pipe bench`: the peer of the engines on a GPU.

`python -m pipework.benchmarks.studies.torch_speed --run RUN --out FOLDER FILE...` measures the
checkpoint of a run as `pipe bench` measures its engines, with torch.compile: padded, and with the
attention of `torch.nn.attention.varlen`, which needs CUDA. The weights are float16 on CUDA, else
float32. FOLDER gets a result for each file: torch-RUN-FILE.json.

Shapes: T tokens of all texts, A attention heads, D width of a head.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface

from pipework.benchmarks.load.offline import measure
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel, write_result
from pipework.benchmarks.studies.script import report_errors, study_parser
from pipework.data.other_files import unlabelled_source
from pipework.export.convert.checkpoint2onnx import VarlenClassifier
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import Manifest, TrainingReadOptions, read_classifier
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits
from pipework.serve.engines.collate import Collate
from pipework.text.encoding import open_encoder
from pipework.text.packing import LENGTHS, OFFSET
from pipework.text.padding import Padding
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.combined import open_saved

ATTENTION = "torch_varlen"  # name of the implementation in transformers
STAGES = {
    Layout.PADDED: "torch, compiled, padded",
    Layout.VARLEN: "torch, compiled, varlen attention",
}


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the texts of each file and store a result for each; return the exit code."""
    parser = study_parser("torch_speed", __doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=512, help="texts per call")
    parser.add_argument("--seconds", type=float, default=3, help="seconds per file and engine")
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile")
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    manifest = read_classifier(options.run)
    encoder = open_encoder(options.run, manifest)
    workloads = {
        file: _workload(manifest, file, options.batch).with_token_counts(encoder)
        for file in options.files
    }
    levels: dict[Path, tuple[OfflineLevel, ...]] = dict.fromkeys(options.files, ())
    for stage, engine in engines(options.run, manifest, options.backend):
        for file, workload in workloads.items():
            encodings = encoder.encode(workload.examples)
            level = measure(engine.infer, encodings, stage, options.batch, options.seconds)
            tokens_per_s = workload.tokens(level.texts_per_s)
            levels[file] += (level.model_copy(update={"tokens_per_s": tokens_per_s}),)
            result = _result(options.run, manifest, workload, levels[file])
            write_result(options.out / f"torch-{options.run.name}-{file.stem}.json", result)
            sys.stdout.write(f"{file.stem}: {stage}: {level.texts_per_s:,.0f} texts/s\n")
    return 0


def _workload(manifest: Manifest, file: Path, batch: int) -> Workload:
    """Return the texts in the order of `pipe bench`."""
    source = unlabelled_source(TrainingReadOptions.of(manifest.data), file)
    return Workload.read(source, texts_per_request=batch, seed=0)


def _result(
    run: Path, manifest: Manifest, workload: Workload, levels: tuple[OfflineLevel, ...]
) -> BenchResult:
    command = f"python -m pipework.benchmarks.studies.torch_speed --run RUN {workload.source}"
    return BenchResult(
        command=tuple(command.split()),
        target=run.name,
        model=manifest.identity.name,
        provenance=provenance(),
        workload=workload.summary(),
        offline=levels,
    )


def engines(run: Path, manifest: Manifest, backend: str) -> Iterator[tuple[str, "TorchEngine"]]:
    """Yield the engines with their names, as they are opened."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    layouts = [Layout.PADDED]
    if has_varlen_attention(device):
        layouts.append(Layout.VARLEN)
    else:
        sys.stdout.write(f"not measured: {STAGES[Layout.VARLEN]}: it needs CUDA and torch 2.10\n")
    for layout in layouts:
        varlen = layout is Layout.VARLEN
        model = open_saved(run / FOLDER, ATTENTION if varlen else "sdpa")
        module = VarlenClassifier(model) if varlen else model
        module.to(device, dtype).eval().compile(dynamic=True, backend=backend)
        padding = Padding.of(manifest.input)
        engine = TorchEngine(module, device, Collate(layout=layout, padding=padding, spans=False))
        engine.learn_costs(manifest.input.max_length)
        yield STAGES[layout], engine


def has_varlen_attention(device: torch.device) -> bool:
    """Return whether torch computes attention over texts without padding on a device."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401, PLC0415  (since 2.10)
    except ImportError:
        return False
    return device.type == "cuda"


class TorchEngine(CollatedEngine):
    """A module that takes the arrays of a layout by name."""

    def __init__(self, module: nn.Module, device: torch.device, collate: Collate) -> None:
        """Take a module on a device."""
        self._module, self._device = module, device
        super().__init__(collate)

    @property
    def on_gpu(self) -> bool:
        """Whether CUDA computes."""
        return self._device.type == "cuda"

    @torch.inference_mode()
    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        inputs = {
            name: torch.from_numpy(array).to(self._device, non_blocking=True)
            for name, array in arrays.items()
        }
        logits = self._module(**inputs)
        return lambda: np.asarray(logits.float().cpu().numpy(), np.float32)

    def close(self) -> None:
        """Do nothing: the module belongs to the caller."""


def attend(
    module: nn.Module,
    query_1ATD: torch.Tensor,
    key_1ATD: torch.Tensor,
    value_1ATD: torch.Tensor,
    attention_mask: object,
    **arguments: torch.Tensor,
) -> tuple[torch.Tensor, None]:
    """Return the attention of each text to itself, [1, T, A, D], as `AttentionInterface` calls it.

    `arguments` has the inputs of `VarlenClassifier` that describe the texts.
    """
    from torch.nn.attention import varlen  # noqa: PLC0415  (since torch 2.10)

    del module, attention_mask
    query, key, value = (states[0].transpose(0, 1) for states in (query_1ATD, key_1ATD, value_1ATD))
    lengths, longest = arguments[LENGTHS].to(torch.int32), arguments[OFFSET].shape[1]
    places = (lengths, lengths, longest, longest)  # of the queries and of the keys
    attended_TAD = cast("torch.Tensor", varlen.varlen_attn(query, key, value, *places))
    return attended_TAD[None], None


AttentionInterface.register(ATTENTION, attend)


if __name__ == "__main__":
    sys.exit(main())
