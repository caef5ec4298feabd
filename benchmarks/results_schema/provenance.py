"""When, where and from what a result came. Nothing here names the host or a path on it."""

from datetime import datetime
from typing import Literal

from pipework.run_folder.files import Record

SCHEMA_VERSION: Literal[1] = 1


class Machine(Record):
    """Where it ran: processor, cores this process may use, memory, Python, operating system."""

    cpu: str
    cores: int
    memory_gib: float
    python: str
    system: str


class Provenance(Record):
    """When and from what a result came; `git_commit` ends in -dirty for a changed checkout."""

    created_at: datetime
    pipework: str
    git_commit: str | None
    machine: Machine
    versions: dict[str, str]
