"""The Deployment that KServe makes of the files in deploy/kserve in its mode Standard."""

import copy
from typing import Any

import yaml

from tests.deploy.image import ROOT

FOLDER = ROOT / "deploy" / "kserve"
MODEL_FIELDS = {"modelFormat", "protocolVersion", "runtime", "storageUri"}
# Kubernetes rounds the default strategy of a Deployment, 25 %, so for one to three replicas.
STRATEGY = {"maxUnavailable": 0, "maxSurge": 1}
GRACE_S = 30  # default of Kubernetes


def kserve_resource(name: str) -> dict[str, Any]:
    """Return a resource of deploy/kserve."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def kserve_deployment(service: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Return the Deployment of an InferenceService.

    The container is the runtime's; fields of `predictor.model` replace the runtime's fields, and
    its arguments are added: MergeRuntimeContainers and MergePodSpec of KServe. The model is the
    volume `models`.
    """
    runtime = copy.deepcopy(kserve_resource("runtime")["spec"])
    predictor = service["spec"]["predictor"]
    assert predictor["model"]["runtime"] == kserve_resource("runtime")["metadata"]["name"]
    (container,) = runtime["containers"]
    own = {key: value for key, value in predictor["model"].items() if key not in MODEL_FIELDS}
    arguments = [*container["args"], *own.pop("args", [])]
    mounts = [{"name": "models", "mountPath": "/mnt/models", "readOnly": True}]
    mounts += container["volumeMounts"]
    merged = {**container, **own, "args": arguments, "volumeMounts": mounts}
    pod = {
        "containers": [merged],
        "volumes": runtime["volumes"],
        "terminationGracePeriodSeconds": predictor.get("terminationGracePeriodSeconds", GRACE_S),
    }
    return {
        "spec": {
            "replicas": replicas,
            "strategy": {"rollingUpdate": STRATEGY},
            "template": {"spec": pod},
        }
    }
