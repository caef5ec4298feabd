"""Every command of deploy/README.md is executed, or checked where it needs a cluster.

buildah runs in conftest.py, and sbatch in test_slurm.py.
"""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.deploy.image import ROOT
from tests.deploy.page import page_commands
from tests.deploy.test_manifests import Resource, check, render_values


def release(words: list[str]) -> tuple[Resource, ...]:
    """Return the resources of `helm install NAME deploy/chart --set VALUE...`."""
    action, name, chart, *options = words
    assert (action, chart) == ("install", "deploy/chart")
    helm.validate_release_name(name)
    assert set(options[::2]) == {"--set"}
    values = helm.parse_set_string(",".join(options[1::2]))
    assert helm.lint(str(ROOT / chart), values)["errors"] == []
    resources = render_values(values, name)
    for resource in resources:
        check(resource)
    return resources


def check_helm(words: list[str], _: dict[str, str]) -> None:
    kinds = {resource["kind"] for resource in release(words)}
    assert kinds >= {"Deployment", "Service"}


def check_kubectl(words: list[str], _: dict[str, str]) -> None:
    match words:
        case ["apply", "-f", path]:
            for resource in yaml.safe_load_all((ROOT / path).read_text()):
                check(resource)
        case ["create", "secret", "generic", name, *files]:
            (command,) = [line for line in page_commands("helm") if f"keysSecret={name}" in line]
            resources = {
                found["kind"]: found["spec"] for found in release(shlex.split(command)[1:])
            }
            (endpoint,) = resources["ServiceMonitor"]["endpoints"]
            key = endpoint["authorization"]["credentials"]["key"]
            assert files == ["--from-file=keys.txt", f"--from-file={key}"]
        case ["wait", target, "--for=condition=complete", "--timeout=24h"]:
            job = yaml.safe_load((ROOT / "deploy/jobs/bulk.yaml").read_text())
            assert target == f"job/{job['metadata']['name']}"
        case ["port-forward", target, port]:
            command = page_commands("helm")[0]
            resources = release(shlex.split(command)[1:])
            kind, _, name = target.partition("/")
            (found,) = [
                resource
                for resource in resources
                if (resource["kind"].lower(), resource["metadata"]["name"]) == (kind, name)
            ]
            assert int(port) in {entry["port"] for entry in found["spec"]["ports"]}
        case _:
            pytest.fail(f"no check for kubectl {' '.join(words)}")


def check_sbatch(words: list[str], variables: dict[str, str]) -> None:
    """Check that the shell reads the file, and that the command sets what the file uses."""
    path = ROOT / words[-1]
    subprocess.run(["sh", "-n", path], check=True)
    script = path.read_text()
    used = set(re.findall(r"\$\{?([A-Z]\w*)", script)) - set(re.findall(r"export (\w+)=", script))
    assert {name for name in used if not name.startswith("SLURM")} == set(variables)


def check_buildah(words: list[str], _: dict[str, str]) -> None:
    assert words[0] == "bud"
    assert (ROOT / words[words.index("-f") + 1]).is_file()


def check_sed(words: list[str], _: dict[str, str]) -> None:
    """Check the job with one shard, which checks a finished job."""
    assert words[2:] == ["|", "kubectl", "apply", "-f", "-"]
    text = subprocess.run(["sed", *words[:2]], check=True, cwd=ROOT, capture_output=True).stdout
    job = yaml.safe_load(text)
    check(job)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["metadata"]["name"] != "score"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 1
    assert {"name": "JOB_COMPLETIONS", "value": "1"} in container["env"]


def check_uv(words: list[str], _: dict[str, str]) -> None:
    """Check that the extras and the files of the command exist."""
    extras = {words[index + 1] for index, word in enumerate(words) if word == "--extra"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= set(project["optional-dependencies"])
    assert (ROOT / words[words.index("-o") + 1]).is_file()


def check_sky(words: list[str], _: dict[str, str]) -> None:
    """Check the kind of the file; test_sky.py checks its content with SkyPilot."""
    command, action, path = words
    services = "service" in yaml.safe_load((ROOT / path).read_text())
    assert (command, action) == (("serve", "up") if services else ("jobs", "launch"))


CHECKS: dict[str, Callable[[list[str], dict[str, str]], Any]] = {
    "buildah": check_buildah,
    "helm": check_helm,
    "kubectl": check_kubectl,
    "sbatch": check_sbatch,
    "sed": check_sed,
    "sky": check_sky,
    "uv": check_uv,
}


def check_command(line: str) -> None:
    """Check a command by its program."""
    words = shlex.split(line, comments=True)
    variables = {}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    program, *arguments = words
    assert program in CHECKS, f"no check for {program}"
    CHECKS[program](arguments, variables)


@pytest.mark.parametrize("line", page_commands())
def test_every_command_of_the_page_is_valid(line):
    check_command(line)


def test_the_page_uses_every_tool():
    assert {program for program in CHECKS if page_commands(program)} == set(CHECKS)


@pytest.mark.parametrize(
    "line",
    [
        "helm install topics deploy/chart --set model.claims=models",
        "helm install topics deploy/charts --set model.claim=models",
        "kubectl apply -f deploy/jobs/absent.yaml",
        "kubectl port-forward service/topics 8002",
        "kubectl create -f deploy/jobs/bulk.yaml",
        "RUN=runs/first OUT=scored sbatch deploy/slurm/bulk.sbatch",
        "buildah bud -f deploy/Dockerfile -t pipework:0.1.0 .",
        "OUT=runs/big sbatch deploy/slurm/train.sbatch",
        "sky serve up deploy/sky/train.yaml",
        "terraform apply",
    ],
)
def test_a_wrong_command_is_found(line):
    found = (AssertionError, OSError, ValueError, helm.HelmError, pytest.fail.Exception)
    with pytest.raises(found):
        check_command(line)
