"""Provenance of a result: time, machine and software versions, without host name or paths."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import pipework
from pipework.git import CHECKOUT, git_commit
from pipework.machine import cpu_fields, cpu_limit
from pipework.record import Record

SCHEMA_VERSION: Literal[1] = 1
# Packages that affect speed.
PACKAGES = (
    "fastapi",
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorrt",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
)


class Machine(Record):
    """Measuring machine: CPU model, cores usable by this process, memory, Python, OS."""

    cpu: str
    cores: int
    memory_gib: float
    python: str
    system: str


class Provenance(Record):
    """Time, machine, versions of a result; `git_commit` ends in -dirty if files were modified."""

    created_at: datetime
    pipework: str
    git_commit: str | None
    machine: Machine
    versions: dict[str, str]


def provenance() -> Provenance:
    """Return the provenance of a measurement made now, in this process."""
    return Provenance(
        created_at=datetime.now(UTC).replace(microsecond=0),
        pipework=pipework.__version__,
        git_commit=git_commit(CHECKOUT),
        machine=machine(),
        versions=package_versions(),
    )


def machine() -> Machine:
    """Describe the machine that runs this process."""
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=cpu_fields().get("model name") or platform.machine(),
        cores=cpu_limit(),
        memory_gib=round(pages * page_size / 2**30, 1),
        python=platform.python_version(),
        system=_system(),
    )


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect speed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return f"{platform.system()} {platform.release()}"
