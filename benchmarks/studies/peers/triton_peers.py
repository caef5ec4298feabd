"""The real tritonserver with a plain python model, as common examples write one."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    SERVERS,
    Contender,
    Launch,
    Place,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.ports import Doors

NAME = "plain"
MOST = 64  # texts of a batch that Triton merges
BODY = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": ["$N", 1], "data": "$TEXTS"}]}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How a model works: its instances, whether Triton merges requests, and whether it does."""

    instances: int
    dynamic: bool
    merge: bool

    def words(self, cores: int) -> str:
        """Say it in the words of the table."""
        threads = max(1, cores // self.instances)
        batching = f"dynamic batching, {'one batch' if self.merge else 'requests one by one'}"
        parts = (
            f"{self.instances} instance{'s' * (self.instances > 1)} of {threads}",
            batching if self.dynamic else "no dynamic batching",
        )
        return ", ".join(parts)


def triton_peers(cores: int, precision: str) -> Iterator[Contender]:
    """Yield the model in fp32 or int8, without dynamic batching and with it, once or a core."""
    for instances in dict.fromkeys((1, cores)):
        for dynamic, merge in ((False, False), (True, False), (True, True)):
            if instances > 1 and dynamic and not merge:
                continue  # then merging only keeps instances from sharing the work
            shape = Shape(instances=instances, dynamic=dynamic, merge=merge)
            yield Contender(
                peer=f"tritonserver, plain python model, onnxruntime {precision}",
                settings=shape.words(cores),
                environment=Environment.TRITON,
                launch=partial(_launch, shape, GRAPH[precision]),
                path=f"/v2/models/{NAME}/infer",
                body=BODY,
                parse=_rows,
            )


def _launch(shape: Shape, graph: str, place: Place) -> Launch:
    found = Installation.find()
    models = place.scratch / "models"
    _write(shape, graph, place, models / NAME)
    doors = Doors(host=HOST, http=place.port).chosen()
    words = [str(found.binary), *doors.options(), f"--model-repository={models}"]
    # Else the regions of memory that two servers share with their models have one name.
    words.append(f"--backend-config=python,shm-region-prefix-name=peer-{place.port}")
    if found.backends is not None:
        words.append(f"--backend-directory={found.backends}")
    changed = {name: found.environment()[name] for name in _changed(found)}
    return Launch(words=(*words, "--exit-timeout-secs=5"), variables=changed)


def _changed(found: Installation) -> list[str]:
    return [] if found.venv is None else ["VIRTUAL_ENV", "PATH", "LD_LIBRARY_PATH"]


def _write(shape: Shape, graph: str, place: Place, folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    shutil.copyfile(SERVERS / "triton_model.py", folder / "1" / "model.py")
    shutil.copyfile(SERVERS / "plain_model.py", folder / "1" / "plain_model.py")
    parameters = {
        "model": str(place.model),
        "graph": graph,
        "threads": str(max(1, place.cores // shape.instances)),
        "merge": str(shape.merge).lower(),
    }
    lines = (
        f'name: "{NAME}" backend: "python" max_batch_size: {MOST}',
        'input { name: "text" data_type: TYPE_STRING dims: [1] }',
        'output { name: "label" data_type: TYPE_STRING dims: [1] }',
        'output { name: "score" data_type: TYPE_FP32 dims: [1] }',
        f"instance_group {{ count: {shape.instances} kind: KIND_CPU }}",
        "dynamic_batching { }" if shape.dynamic else "",
        *(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
        ),
    )
    (folder / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


def _rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    found = {tensor["name"]: tensor["data"] for tensor in answer["outputs"]}
    pairs = zip(found["label"], found["score"], strict=True)
    return [{str(label): float(score)} for label, score in pairs]
