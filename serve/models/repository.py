"""Reads a model repository in the layout that `pipe export --to triton` writes.

    NAME/config.pbtxt      which versions are served; without it the newest
    NAME/VERSION/          a run folder with one engine

A version is complete when it has a manifest, which is written last. This module reads only names,
sizes and times of files, and the configs:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.errors import RunFolderError
from pipework.run_folder.files import MANIFEST_FILE as MANIFEST
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.triton import TENSOR_MODEL

CONFIG = "config.pbtxt"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
VERSION = re.compile(r"[1-9][0-9]{0,17}")
OUTSIDE = "is outside of the repository, where no files are read"
Stamp = tuple[tuple[str, int, int], ...]  # of each file: path, size, time of the last change


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Which versions are served: the `latest` N, or the `specific` ones, or else all."""

    latest: int = 0
    specific: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: ModelConfig) -> "Policy":
        """Read the policy of a config; the default is the newest version.

        Raises:
            ValueError: the policy names no version.
        """
        section = config.version_policy
        kind = section.WhichOneof("policy_choice")
        if kind is None:
            return NEWEST
        policy = cls(latest=section.latest.num_versions, specific=tuple(section.specific.versions))
        if kind != "all" and policy == cls():
            message = f"the {kind} version_policy of its {CONFIG} names no version"
            raise ValueError(message)
        return policy

    def choose(self, present: Iterable[int]) -> list[int]:
        """Return the versions to serve, the newest last.

        Specific versions are included even if they are not present.
        """
        chosen = sorted(self.specific or present)
        return chosen[-self.latest :] if self.latest else chosen


NEWEST = Policy(latest=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFolder:
    """A version to serve. Two are equal if the version has not changed between them.

    Attributes:
        root: folder of the repository; no file may be outside.
        stamp: sizes and times of its files.
        reason: why it cannot be served, or "".
    """

    name: str
    version: str
    folder: Path
    root: Path
    stamp: Stamp = ()
    reason: str = ""

    def check_inside(self, manifest: Manifest) -> None:
        """Check that every file of the manifest is in the repository after resolving links.

        Raises:
            RunFolderError: a file is outside; the message names it.
        """
        files = [file for engine in manifest.engines for file in engine.files]
        for file in (manifest.input.tokenizer, *files):
            _check_inside(self.folder / file.path, self.root)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A model that takes texts.

    Attributes:
        policy: which versions are served.
        versions: the versions to serve, the newest last.
        present: all complete versions.
        reason: why no version can be served, or "".
    """

    name: str
    policy: Policy = NEWEST
    versions: tuple[VersionFolder, ...] = ()
    present: tuple[str, ...] = ()
    reason: str = ""


def is_repository(folder: Path) -> bool:
    """Return whether a folder contains models and is not a run folder itself."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return False
    return any((path / CONFIG).exists() or _complete_versions(path) for path in _models(folder))


def read_repository(folder: Path) -> list[ModelFolder]:
    """Return the models that take texts, sorted by name.

    Other models, such as the tensor models that they call, are skipped.

    Raises:
        OSError: the folder cannot be read.
    """
    root = folder.resolve(strict=True)
    models = (_read_model(path, root) for path in _models(root))
    return [model for model in models if model is not None]


def _models(folder: Path) -> list[Path]:
    named = (path for path in folder.iterdir() if NAME.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir())


def _read_model(folder: Path, root: Path) -> ModelFolder | None:
    name = folder.name
    present: tuple[str, ...] = ()
    try:
        _check_inside(folder, root)
        present = _complete_versions(folder)
        config = _read_config(folder, root)
        if config is None and not present:
            return None
        if config is not None and (config.platform or config.backend not in {"", "python"}):
            return None
        return _model_folder(folder, root, config or ModelConfig())
    except (RunFolderError, ValueError) as error:
        return ModelFolder(name=name, present=present, reason=str(error))
    except OSError as error:
        return ModelFolder(name=name, present=present, reason=f"{error.filename}: {error.strerror}")


def _model_folder(folder: Path, root: Path, config: ModelConfig) -> ModelFolder:
    policy, present = Policy.of(config), _complete_versions(folder)
    chosen = policy.choose(map(int, present))
    if not chosen:
        message = f"{folder} has no complete version; expected {folder.name}/1/{MANIFEST}"
        raise RunFolderError(message)
    tensor_model = str(config.parameters[TENSOR_MODEL].string_value)
    versions = (
        _version_folder(folder / str(number), root, present, tensor_model) for number in chosen
    )
    return ModelFolder(name=folder.name, policy=policy, versions=tuple(versions), present=present)


def _read_config(folder: Path, root: Path) -> ModelConfig | None:
    path = folder / CONFIG
    if not path.exists():
        return None
    _check_inside(path, root)
    if not path.is_file():  # reading a pipe would block forever
        message = f"{path}: expected a file"
        raise ValueError(message)
    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        message = f"{path} is not a model config: {error}"
        raise ValueError(message) from error
    if config.name not in {"", folder.name}:
        message = f"{path} is of model {config.name!r}, expected the folder's name {folder.name!r}"
        raise ValueError(message)
    return config


def _version_folder(
    folder: Path, root: Path, present: Sequence[str], tensor_model: str
) -> VersionFolder:
    version = VersionFolder(name=folder.parent.name, version=folder.name, folder=folder, root=root)
    if tensor_model:
        reason = f"its logits are computed by {tensor_model}, a model of a tritonserver"
        return replace(version, reason=f"{reason}: serve it with --backend triton")
    if folder.name not in present:
        reason = f"{CONFIG} names it, but {folder} is not a complete version"
        return replace(version, reason=reason)
    try:
        _check_inside(folder, root)
        _check_inside(folder / MANIFEST, root)
    except RunFolderError as error:
        return replace(version, reason=str(error))
    return replace(version, stamp=_stamp(folder))


def _stamp(folder: Path) -> Stamp:
    files = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            try:
                status = path.stat()
            except FileNotFoundError:  # just removed, or a broken link
                continue
            files.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(sorted(files))


def _complete_versions(folder: Path) -> tuple[str, ...]:
    """Return the complete versions of a model, the newest last."""
    named = (path.name for path in folder.iterdir() if VERSION.fullmatch(path.name))
    complete = (name for name in named if (folder / name / MANIFEST).is_file())
    return tuple(sorted(complete, key=int))


def _check_inside(path: Path, root: Path) -> None:
    if not path.resolve().is_relative_to(root):
        message = f"{path} {OUTSIDE}"
        raise RunFolderError(message, "copy the files into the repository")
