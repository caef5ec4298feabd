"""Peer tritonserver with a plain Python model, in the style of common examples."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    SERVERS,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import Ports

NAME = "plain"
MAX_BATCH = 64  # texts
BODY = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": ["$N", 1], "data": "$TEXTS"}]}'


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonSetup:
    """Number of instances, dynamic batching, and whether a merged batch is computed in one call."""

    instances: int
    dynamic: bool
    merge: bool

    def words(self, cores: int) -> str:
        """Return the name of the settings in the table."""
        threads = max(1, cores // self.instances)
        batching = f"dynamic batching, {'one batch' if self.merge else 'requests one by one'}"
        parts = (
            f"{self.instances} instance{'s' * (self.instances > 1)} of {threads}",
            batching if self.dynamic else "no dynamic batching",
        )
        return ", ".join(parts)


def triton_peers(cores: int, precision: str) -> Iterator[Competitor]:
    """Yield the model with and without dynamic batching, as one instance and one per core."""
    for instances in dict.fromkeys((1, cores)):
        for dynamic, merge in ((False, False), (True, False), (True, True)):
            if instances > 1 and dynamic and not merge:
                continue  # merging would only prevent the instances from sharing the work
            setup = TritonSetup(instances=instances, dynamic=dynamic, merge=merge)
            yield Competitor(
                peer=f"tritonserver, plain python model, onnxruntime {precision}",
                settings=setup.words(cores),
                environment=Environment.TRITON,
                launch=partial(_launch, setup, GRAPH[precision]),
                path=f"/v2/models/{NAME}/infer",
                body=BODY,
                parse=_rows,
            )


def _launch(setup: TritonSetup, graph: str, context: LaunchContext) -> Launch:
    installation = Installation.find()
    models = context.scratch / "models"
    _write(setup, graph, context, models / NAME)
    ports = Ports(host=HOST, http=context.port).chosen()
    words = [str(installation.binary), *ports.options(), f"--model-repository={models}"]
    # Otherwise the shared memory regions of two servers would have the same name.
    words.append(f"--backend-config=python,shm-region-prefix-name=peer-{context.port}")
    if installation.backends is not None:
        words.append(f"--backend-directory={installation.backends}")
    variables = {name: installation.environment()[name] for name in _changed(installation)}
    return Launch(words=(*words, "--exit-timeout-secs=5"), variables=variables)


def _changed(installation: Installation) -> list[str]:
    return [] if installation.venv is None else ["VIRTUAL_ENV", "PATH", "LD_LIBRARY_PATH"]


def _write(setup: TritonSetup, graph: str, context: LaunchContext, folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    shutil.copyfile(SERVERS / "triton_model.py", folder / "1" / "model.py")
    shutil.copyfile(SERVERS / "plain_model.py", folder / "1" / "plain_model.py")
    parameters = {
        "model": str(context.model),
        "graph": graph,
        "threads": str(max(1, context.cores // setup.instances)),
        "merge": str(setup.merge).lower(),
    }
    lines = (
        f'name: "{NAME}" backend: "python" max_batch_size: {MAX_BATCH}',
        'input { name: "text" data_type: TYPE_STRING dims: [1] }',
        'output { name: "label" data_type: TYPE_STRING dims: [1] }',
        'output { name: "score" data_type: TYPE_FP32 dims: [1] }',
        f"instance_group {{ count: {setup.instances} kind: KIND_CPU }}",
        "dynamic_batching { }" if setup.dynamic else "",
        *(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
        ),
    )
    (folder / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


def _rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    tensors = {tensor["name"]: tensor["data"] for tensor in response["outputs"]}
    pairs = zip(tensors["label"], tensors["score"], strict=True)
    return [{str(label): float(score)} for label, score in pairs]
