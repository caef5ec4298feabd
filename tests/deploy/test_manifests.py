"""The manifests of deploy/ are valid resources, their commands exist, and typos are found.

Built-in resources are checked by the schemas of Kubernetes, custom ones by those in
../shared/schemas.
"""

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema
import kubernetes_validate
import pytest
import typer.main
import yaml
from kubernetes_validate import utils as schemas

from pipework.cli import app
from pipework.errors import CheckFailedError, ConfigError
from pipework.machine import CPUS
from pipework.serve.bulk.executors import SHARDS
from pipework.serve.bulk.job_folder import StoreFolder, job_folder
from pipework.serve.config import ServeSettings
from pipework.serve.observability.metrics import GAUGES
from pipework.settings import load_settings
from tests.deploy.kserve import kserve_deployment, kserve_resource

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMAS = ROOT.parent / "shared" / "schemas"
KUBERNETES = "1.33"
CLAIM = {"model": {"claim": "models"}}
VALUES: dict[str, dict[str, Any]] = {
    "claim": CLAIM,
    "image": {"model": {"image": "registry.example/topics:1", "path": "topics"}},
    "hpa": {**CLAIM, "autoscaling": {"kind": "hpa"}},
    "keda": {**CLAIM, "autoscaling": {"kind": "keda"}, "serviceMonitor": {"enabled": True}},
    "slow scrapes": {
        **CLAIM,
        "autoscaling": {"kind": "keda"},
        "serviceMonitor": {"enabled": True, "interval": "15s"},
    },
    "gpu": {
        **CLAIM,
        "image": {"repository": "registry.example/pipework-cuda"},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    },
    "no requests": {**CLAIM, "resources": {"requests": {"cpu": None}}},
    "no pre-stop": {**CLAIM, "preStopSeconds": 0},
    "bucket": {
        "model": {"url": "s3://bucket/topics", "fetchImage": "registry.example/pipework-s3:1"},
        "env": [{"name": "AWS_REGION", "value": "eu-west-1"}],
        "serviceAccountName": "reader",
        "networkPolicy": {"enabled": True, "egress": [{"ports": [{"port": 443}]}]},
    },
    "tls": {
        **CLAIM,
        "image": {"digest": f"sha256:{'0' * 64}"},
        "tlsSecret": "topics-tls",
        "ingress": {
            "host": "topics.example",
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
            "tlsSecret": "topics-ingress",
        },
        "keysSecret": "keys",
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    },
    "all": {
        **CLAIM,
        "keysSecret": "keys",
        "settings": ["queue.batch_tokens=2048", "limits.texts=64"],
        "workers": "auto",
        "env": [{"name": "OTEL_SERVICE_NAME", "value": "topics"}],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceMonitor": {"enabled": True},
        "networkPolicy": {"enabled": True},
    },
}
JOBS = ("jobs/bulk.yaml", "jobs/bulk-s3.yaml")
KSERVE = ("kserve/runtime.yaml", "kserve/runtime-gpu.yaml", "kserve/service.yaml")
FILES = (*KSERVE, *JOBS, "jobs/train.yaml")
CUSTOM = {
    "ClusterServingRuntime": "kserve_clusterservingruntimes.yaml",
    "InferenceService": "kserve_inferenceservices.yaml",
    "ScaledObject": "keda_scaledobjects.yaml",
    "TrainJob": "kubeflow_trainjobs.yaml",
    "ServiceMonitor": "prometheus_servicemonitors.yaml",
}
Resource = dict[str, Any]


@cache
def render(name: str) -> tuple[Resource, ...]:
    """Return the resources of the chart with values of this module."""
    return render_values(VALUES[name])


def render_values(values: dict[str, Any], name: str = "topics") -> tuple[Resource, ...]:
    """Return the resources of the chart with some values."""
    with helm.Chart.load(str(DEPLOY / "chart")) as chart:
        files = chart.render(values, name=name, namespace="text")
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return tuple(
        found for text in texts for found in yaml.load_all(text, yaml.CSafeLoader) if found
    )


def all_resources() -> Iterator[tuple[str, Resource]]:
    for name in VALUES:
        yield from ((f"chart, {name}", resource) for resource in render(name))
    for name in FILES:
        yield name, yaml.safe_load((DEPLOY / name).read_text())


# Each check would parse the definitions of all kinds again.
schemas.schema_contents = cache(schemas.schema_contents)


def check(resource: Resource) -> None:
    """Check a resource by its schema; unknown fields are errors.

    Raises:
        jsonschema.ValidationError, kubernetes_validate.ValidationError: it is invalid.
    """
    kind = resource["kind"]
    if kind not in CUSTOM:
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)
        return
    validator(kind, resource["apiVersion"].partition("/")[2]).validate(resource)


@cache
def validator(kind: str, version: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a custom resource."""
    if not SCHEMAS.is_dir():
        pytest.skip("the real data are absent: ../shared/schemas")
    definition = yaml.load((SCHEMAS / CUSTOM[kind]).read_text(), yaml.CSafeLoader)
    (schema,) = [
        found["schema"]["openAPIV3Schema"]
        for found in definition["spec"]["versions"]
        if found["name"] == version
    ]
    return jsonschema.Draft202012Validator(closed(schema))


def closed(schema: Any) -> Any:
    """Return a schema in which objects with properties allow no others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and "type" in schema:
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return result


# Several values give the same resource.
RESOURCES = list({yaml.safe_dump(found): (name, found) for name, found in all_resources()}.values())
IDS = [f"{name}: {resource['kind']}" for name, resource in RESOURCES]


@pytest.mark.parametrize("resource", [resource for _, resource in RESOURCES], ids=IDS)
def test_every_resource_is_valid(resource):
    check(resource)


def test_the_chart_has_every_kind_of_resource_and_no_finding():
    kinds = {resource["kind"] for _, resource in RESOURCES}
    assert kinds >= {
        *("Deployment", "Service", "HorizontalPodAutoscaler", "ScaledObject", "Pod"),
        *("PodDisruptionBudget", "ServiceMonitor", "NetworkPolicy", "Job"),
    }
    found = helm.lint(str(DEPLOY / "chart"), CLAIM)
    messages = [message["error"] for message in found["messages"]]
    assert (messages, found["errors"]) == (["icon is recommended"], [])


# Below these any key is valid, and some of them are optional.
FREE = {
    *("labels", "annotations", "matchLabels", "nodeSelector"),
    *("limits", "requests", "metadata", "selector"),
}


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key whose name is fixed by the schema."""
    if isinstance(node, dict) and not FREE & set(path):
        for key, value in node.items():
            yield (*path, key)
            yield from paths(value, (*path, key))
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from paths(value, (*path, index))


def with_typo(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """Return a copy of a document with another name of a key."""
    changed = copy.deepcopy(document)
    node = changed
    for step in path[:-1]:
        node = node[step]
    node[f"{path[-1]}x"] = node.pop(path[-1])
    return changed


@pytest.mark.parametrize("resource", [resource for _, resource in RESOURCES], ids=IDS)
def test_a_typo_in_any_key_is_found(resource):
    unnoticed = []
    for path in paths(resource):
        if path[0] in ("apiVersion", "kind"):
            continue
        try:
            check(with_typo(resource, path))
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
            continue
        unnoticed.append(path)
    assert unnoticed == []


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": {"claim": "a", "image": "b"}},
        {"model": {"claim": "a", "path": "/absolute"}},
        {**CLAIM, "replica": 2},
        {**CLAIM, "replicas": 0},
        {**CLAIM, "workers": "many"},
        {**CLAIM, "env": [{"value": "topics"}]},
        {**CLAIM, "autoscaling": {"kind": "vpa"}},
        {**CLAIM, "autoscaling": {"kind": "keda", "queueSeconds": "fast"}},
        {**CLAIM, "settings": ["queue.batch_tokens"]},
        {**CLAIM, "image": {"repository": ""}},
        {**CLAIM, "serviceMonitor": {"enabled": True, "interval": "1m"}},
        {**CLAIM, "networkPolicy": {"enabled": True, "from": []}},
        {"model": {"claim": "a", "url": "s3://b"}},
        {"model": {"url": "bucket/topics"}},
        {**CLAIM, "image": {"digest": "latest"}},
    ],
)
def test_wrong_values_are_refused(values):
    with helm.Chart.load(str(DEPLOY / "chart")) as chart, pytest.raises(helm.HelmError):
        chart.render(values, name="topics", namespace="text")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"autoscaling": {"kind": "keda"}},
            "autoscaling.kind=keda needs serviceMonitor.enabled=true",
        ),
        (
            {"model": {"url": "s3://b"}, "networkPolicy": {"enabled": True}},
            "model.url needs networkPolicy.egress",
        ),
        (
            {"autoscaling": {"kind": "hpa", "minReplicas": 4, "maxReplicas": 3}},
            "autoscaling.minReplicas is 4, expected at most autoscaling.maxReplicas, which is 3",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(values, message):
    with (
        helm.Chart.load(str(DEPLOY / "chart")) as chart,
        pytest.raises(helm.HelmError, match=re.escape(message)),
    ):
        chart.render(CLAIM | values, name="topics", namespace="text")


def containers() -> Iterator[dict[str, Any]]:
    for _, resource in RESOURCES:
        spec = resource["spec"]
        pod = spec.get("template", {}).get("spec", spec)
        yield from pod.get("containers", [])


def test_the_commands_of_the_containers_exist():
    commands = typer.main.get_command(app).commands
    checked = 0
    for container in containers():
        name, *words = container.get("args", [""])
        if name not in commands:
            assert container["command"] == ["python", "-c"]
            continue
        known = {option for each in commands[name].params for option in each.opts}
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert set(given) <= known
        settings = [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
        if name == "serve":
            load_settings(ServeSettings, None, settings)
        checked += 1
    assert checked >= len(VALUES)


def test_ports_probes_and_paths_are_those_of_the_server():
    expected = {"/healthz", "/readyz"}
    for container in containers():
        probes = [container[key] for key in container if key.endswith("Probe")]
        assert {probe["httpGet"]["path"] for probe in probes} <= expected
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
    image = (DEPLOY / "Containerfile").read_text()
    assert "EXPOSE 8000 8001" in image
    for public, expected_ports in ((False, {8000}), (True, {8000, 8001})):
        resources = render_values({**CLAIM, "publicGrpc": public})
        found = {resource["kind"]: resource for resource in resources}
        pod = found["Deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert {port["containerPort"] for port in container["ports"]} == expected_ports
        assert {port["port"] for port in found["Service"]["spec"]["ports"]} == expected_ports
        assert ("--set=security.public_grpc=true" in container["args"]) is public
    assert pod["securityContext"]["runAsUser"] == int(re.findall(r"--uid (\d+)", image)[0])


def test_packages_of_the_image_have_hashes_and_the_versions_of_the_constraints():
    hashed, constraints = (
        path.read_text() for path in (DEPLOY / "hashes.txt", ROOT / "constraints.txt")
    )
    pin = r"^(\S+)==(\S+)"
    versions = dict(re.findall(pin + r" \\\n    --hash=sha256:[0-9a-f]{64}", hashed, re.MULTILINE))
    assert len(versions) == hashed.count("==") > 90
    pinned = dict(re.findall(pin, constraints, re.MULTILINE))
    shared = versions.keys() & pinned.keys()
    assert {name: versions[name] for name in shared} == {name: pinned[name] for name in shared}
    assert {"grpcio", "numpy", "onnxruntime", "openvino", "pyarrow", "torch"} <= shared


def test_the_temporary_folder_has_a_limit():
    texts = {path: path.read_text() for path in DEPLOY.rglob("*.yaml")}
    limits = {
        path: re.findall(r"name: tmp\b[^}]*\n +emptyDir: {(.*)}", text)
        for path, text in texts.items()
    }
    found = [limit for values in limits.values() for limit in values]
    assert len(found) == 6
    assert all(limit.startswith("sizeLimit: ") for limit in found)


@pytest.mark.parametrize("made_by", ["chart", "KServe"])
def test_the_grace_period_covers_the_server_s_and_the_hook(made_by):
    deployments = {resource["kind"]: resource for resource in render("claim")}
    deployments["KServe"] = kserve_deployment(kserve_resource("service"), 1)
    pod = deployments["Deployment" if made_by == "chart" else made_by]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = [word.removeprefix("--set=") for word in container["args"] if "--set=" in word]
    grace_s = load_settings(ServeSettings, None, words).grace_s
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > grace_s + before_s


def test_the_scaling_query_names_a_metric_of_the_server():
    (scaled,) = [found for found in render("keda") if found["kind"] == "ScaledObject"]
    (metric,) = re.findall(r"pipework_(\w+)\{", scaled["spec"]["triggers"][0]["metadata"]["query"])
    assert metric in {name for name, *_ in GAUGES}


def test_the_window_of_the_scaling_query_has_two_scrapes():
    resources = {resource["kind"]: resource["spec"] for resource in render("slow scrapes")}
    query = resources["ScaledObject"]["triggers"][0]["metadata"]["query"]
    (window_s,) = re.findall(r"\[(\d+)s\]", query)
    interval = resources["ServiceMonitor"]["endpoints"][0]["interval"]
    assert interval == "15s"
    assert int(window_s) == 2 * 15


def test_only_the_server_is_selected_and_the_test_may_connect():
    resources = {resource["kind"]: resource for resource in render("all")}
    labels = resources["Pod"]["metadata"]["labels"]
    server = resources["Deployment"]["spec"]["template"]["metadata"]["labels"]
    policy = resources["NetworkPolicy"]["spec"]
    selectors = [
        resources["Service"]["spec"]["selector"],
        resources["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= server.items()
        assert not selector.items() <= labels.items()
    assert {"podSelector": {"matchLabels": labels}} in policy["ingress"][0]["from"]


def test_the_pods_of_the_chart_have_the_values_of_placement_and_environment():
    by_kind = {resource["kind"]: resource for resource in render("all")}
    pods = by_kind["Deployment"]["spec"]["template"]["spec"], by_kind["Pod"]["spec"]
    for name in ("nodeSelector", "tolerations", "affinity", "imagePullSecrets"):
        assert [pod[name] for pod in pods] == [VALUES["all"][name]] * 2
    (server,) = pods[0]["containers"]
    assert server["env"][1:] == VALUES["all"]["env"]
    assert "--workers=auto" in server["args"]


def pod_of(name: str) -> dict[str, Any]:
    """Return the pod of the Deployment."""
    (deployment,) = [found for found in render(name) if found["kind"] == "Deployment"]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def test_threads_follow_the_requested_processors():
    requested = {"name": CPUS, "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}}
    jobs = [yaml.safe_load((DEPLOY / name).read_text())["spec"]["template"] for name in JOBS]
    runtimes = [kserve_resource(name) for name in ("runtime", "runtime-gpu")]
    pods = [pod_of("claim"), *(job["spec"] for job in jobs), *(each["spec"] for each in runtimes)]
    for pod in pods:
        assert requested in pod["containers"][0]["env"]
    (none,) = pod_of("no requests")["containers"]
    assert "env" not in none


def test_the_default_image_has_the_version_of_the_chart_and_a_digest_replaces_the_tag():
    version = yaml.safe_load((DEPLOY / "chart/Chart.yaml").read_text())["appVersion"]
    images = [pod_of(name)["containers"][0]["image"] for name in ("claim", "tls")]
    assert images == [f"localhost/pipework:{version}", f"localhost/pipework@sha256:{'0' * 64}"]
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()]
    assert not any("latest" in text for text in texts)


def test_a_server_with_keys_and_tls_can_be_scraped():
    resources = {resource["kind"]: resource for resource in render("tls")}
    monitor = resources["ServiceMonitor"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"] == {"credentials": {"name": "keys", "key": "metrics"}}
    (server,) = pod_of("tls")["containers"]
    probes = [server[key]["httpGet"] for key in server if key.endswith("Probe")]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}
    annotations = resources["Deployment"]["spec"]["template"]["metadata"].get("annotations", {})
    assert "prometheus.io/scrape" not in annotations


def test_the_init_container_copies_a_folder_to_the_place_of_the_model(tmp_path):
    (fetch,) = pod_of("bucket")["initContainers"]
    (server,) = pod_of("bucket")["containers"]
    script, url = fetch["args"]
    assert url == "s3://bucket/topics"
    assert fetch["image"] == "registry.example/pipework-s3:1"
    assert fetch["env"] == VALUES["bucket"]["env"]
    source, target = tmp_path / "source", tmp_path / "models"
    (source / "engines").mkdir(parents=True)
    target.mkdir()
    (source / "manifest.json").write_text("{}")
    (source / "engines" / "model.onnx").write_text("graph")
    command = [sys.executable, "-c", script.replace("/mnt/models", str(target)), f"file://{source}"]
    subprocess.run(command, check=True)
    assert server["args"][1] == "/mnt/models"
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in files:
        assert (target / path.relative_to(source)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", JOBS)
def test_errors_that_the_same_command_repeats_end_a_shard(name):
    spec = yaml.safe_load((DEPLOY / name).read_text())["spec"]
    rules = {rule["action"]: rule for rule in spec["podFailurePolicy"]["rules"]}
    codes = {ConfigError.exit_code, CheckFailedError.exit_code}
    assert set(rules["FailIndex"]["onExitCodes"]["values"]) == codes


def test_no_seconds_before_the_stop_are_no_hook():
    (deployment,) = [found for found in render("no pre-stop") if found["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "lifecycle" not in container


def test_a_hook_of_the_inference_service_is_for_the_mode_standard():
    # Knative refuses hooks; a hook of the runtime would be part of every InferenceService.
    assert "lifecycle" not in kserve_resource("runtime")["spec"]["containers"][0]
    annotations = kserve_resource("service")["metadata"]["annotations"]
    assert annotations == {"serving.kserve.io/deploymentMode": "Standard"}


def test_kserve_s_runtime_serves_its_protocols_with_a_writable_tmp():
    spec = kserve_resource("runtime")["spec"]
    (container,) = spec["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [8000]
    assert spec["protocolVersions"] == ["v2"]  # KServe sends grpc-v2 to the only port
    gpu = kserve_resource("runtime-gpu")["spec"]
    assert (gpu["protocolVersions"], gpu["containers"][0]["ports"]) == (
        ["grpc-v2"],
        [{"name": "h2c", "containerPort": 8001, "protocol": "TCP"}],
    )
    assert "--set=security.public_grpc=true" in gpu["containers"][0]["args"]
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}} in spec["volumes"]
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("name", JOBS)
def test_the_jobs_set_the_variables_of_a_shard(name):
    job = yaml.safe_load((DEPLOY / name).read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    total = {index: count for index, *_, count in SHARDS}["JOB_COMPLETION_INDEX"]
    assert {"name": total, "value": str(job["completions"])} in container["env"]


def test_the_job_of_a_bucket_needs_no_volume_that_pods_share():
    job = yaml.safe_load((DEPLOY / "jobs/bulk-s3.yaml").read_text())["spec"]["template"]["spec"]
    assert [{*volume} - {"name"} for volume in job["volumes"]] == [{"image"}, {"emptyDir"}]
    (container,) = job["containers"]
    words = dict(pairwise(container["args"]))
    assert words["--in"].startswith("s3://")
    assert isinstance(job_folder("memory" + words["--out"].removeprefix("s3")), StoreFolder)
