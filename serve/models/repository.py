"""Reads a folder of models in the layout that `pipe export --to triton` writes.

    NAME/config.pbtxt      which versions are served; without it the newest
    NAME/VERSION/          a run folder with one engine

A version counts when its manifest is there, which is written last. Nothing is read here but names,
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
from pipework.run_folder.files import FILE_NAME as MANIFEST
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.remote import Behind

CONFIG = "config.pbtxt"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
VERSION = re.compile(r"[1-9][0-9]{0,17}")
LEAVES = "leads out of the repository, and nothing outside it is read"
Stamp = tuple[tuple[str, int, int], ...]  # of each file: path, size, time of the last change


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Which versions are served: the `latest` ones, so many, or the `specific` ones, or all."""

    latest: int = 0
    specific: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: ModelConfig) -> "Policy":
        """Read that of a config; if it has none, the newest version is served.

        Raises:
            ValueError: it would serve none.
        """
        given = config.version_policy
        kind = given.WhichOneof("policy_choice")
        if kind is None:
            return NEWEST
        found = cls(latest=given.latest.num_versions, specific=tuple(given.specific.versions))
        if kind != "all" and found == cls():
            message = f"the {kind} version_policy of its {CONFIG} names no version"
            raise ValueError(message)
        return found

    def choose(self, there: Iterable[int]) -> list[int]:
        """Return which of the versions that are there are served, the newest last.

        Specific ones are among them where they are not there too.
        """
        found = sorted(self.specific or there)
        return found[-self.latest :] if self.latest else found


NEWEST = Policy(latest=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFolder:
    """A version that is to be served. Two are equal where nothing has changed between them.

    Attributes:
        name: of the model.
        version: of it.
        folder: a run folder.
        root: of the repository, that no file may lie outside.
        stamp: of its files.
        behind: what computes its logits; None for the engine in the folder.
        reason: why it cannot be served, or "".
    """

    name: str
    version: str
    folder: Path
    root: Path
    stamp: Stamp = ()
    behind: Behind | None = None
    reason: str = ""

    def check_inside(self, manifest: Manifest) -> None:
        """Check that every file that the manifest names lies in the repository, by links too.

        Raises:
            RunFolderError: naming the file that does not.
        """
        files = [one for engine in manifest.engines for one in engine.files]
        for file in (manifest.input.tokenizer, *files):
            _check_inside(self.folder / file.path, self.root)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A model that takes texts.

    Attributes:
        name: of it, and of its folder.
        policy: which versions are served.
        versions: those, the newest last.
        there: the versions that are whole, served or not.
        reason: why none can be served, or "".
    """

    name: str
    policy: Policy = NEWEST
    versions: tuple[VersionFolder, ...] = ()
    there: tuple[str, ...] = ()
    reason: str = ""


def is_repository(folder: Path) -> bool:
    """Whether a folder holds models, and is no run folder itself."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return False
    return any((path / CONFIG).exists() or _there(path) for path in _models(folder))


def read_repository(folder: Path) -> list[ModelFolder]:
    """Return the models that take texts, by name.

    Others, as those that compute behind them, are passed over.

    Raises:
        OSError: the folder cannot be read.
    """
    root = folder.resolve(strict=True)
    found = (_read_model(path, root) for path in _models(root))
    return [model for model in found if model is not None]


def _models(folder: Path) -> list[Path]:
    named = (path for path in folder.iterdir() if NAME.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir())


def _read_model(folder: Path, root: Path) -> ModelFolder | None:
    name = folder.name
    there: tuple[str, ...] = ()
    try:
        _check_inside(folder, root)
        there = _there(folder)
        config = _read_config(folder, root)
        if config is None and not there:
            return None
        if config is not None and (config.platform or config.backend not in {"", "python"}):
            return None
        return _described(folder, root, config or ModelConfig())
    except (RunFolderError, ValueError) as error:
        return ModelFolder(name=name, there=there, reason=str(error))
    except OSError as error:
        return ModelFolder(name=name, there=there, reason=f"{error.filename}: {error.strerror}")


def _described(folder: Path, root: Path, config: ModelConfig) -> ModelFolder:
    policy, there = Policy.of(config), _there(folder)
    chosen = policy.choose(map(int, there))
    if not chosen:
        message = f"{folder} holds no whole version; expected {folder.name}/1/{MANIFEST}"
        raise RunFolderError(message)
    behind = Behind.of(config)
    versions = (_version(folder / str(number), root, there, behind) for number in chosen)
    return ModelFolder(name=folder.name, policy=policy, versions=tuple(versions), there=there)


def _read_config(folder: Path, root: Path) -> ModelConfig | None:
    path = folder / CONFIG
    if not path.exists():
        return None
    _check_inside(path, root)
    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        message = f"{path} is not the config of a model: {error}"
        raise ValueError(message) from error
    if config.name not in {"", folder.name}:
        message = f"{path} is of model {config.name!r}, expected the folder's name {folder.name!r}"
        raise ValueError(message)
    return config


def _version(
    folder: Path, root: Path, there: Sequence[str], behind: Behind | None
) -> VersionFolder:
    found = VersionFolder(
        name=folder.parent.name, version=folder.name, folder=folder, root=root, behind=behind
    )
    if folder.name not in there:
        return replace(found, reason=f"{CONFIG} asks for it, and {folder} is no whole version")
    try:
        _check_inside(folder, root)
        _check_inside(folder / MANIFEST, root)
    except RunFolderError as error:
        return replace(found, reason=str(error))
    return replace(found, stamp=_stamp(folder))


def _stamp(folder: Path) -> Stamp:
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            try:
                status = path.stat()
            except FileNotFoundError:  # removed meanwhile, or a link to nothing
                continue
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def _there(folder: Path) -> tuple[str, ...]:
    """Return the versions of a model that are whole."""
    named = (path.name for path in folder.iterdir() if VERSION.fullmatch(path.name))
    whole = (name for name in named if (folder / name / MANIFEST).is_file())
    return tuple(sorted(whole, key=int))


def _check_inside(path: Path, root: Path) -> None:
    if not path.resolve().is_relative_to(root):
        message = f"{path} {LEAVES}"
        raise RunFolderError(message, "copy the files into the repository")
