"""Write a run with its proven engines as an OCI image whose /models a server mounts.

The layout follows https://github.com/opencontainers/image-spec (version 1.0). Each engine is a
layer, so that a registry stores an unchanged engine once; layers are not compressed, because
weights hardly compress. The same run gives the same digests.
"""

import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from pipework.errors import ConfigError, MissingDependencyError
from pipework.export.publish.folder import new_folder, proofs, public_manifest
from pipework.progress import Progress
from pipework.run_folder.files import MANIFEST_FILE, file_digest, verify_files
from pipework.run_folder.manifest import Manifest

ROOT = "models"  # KServe's modelcar and image volumes mount this folder
MEDIA = "application/vnd.oci.image"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOCAL = ("localhost", "127.0.0.1", "::1")
LATEST = "latest"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A file below blobs/sha256, and its media type."""

    media_type: str
    digest: str
    size: int

    def descriptor(self, **fields: object) -> dict[str, object]:
        """Return the descriptor of the image specification."""
        own = {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}
        return own | fields


def publish_oci(
    run: Path, out: Path, progress: Progress, tag: str = LATEST
) -> tuple[list[str], str]:
    """Write an image layout into a new folder; return the names of its engines, and its digest.

    The manifest in the image has the proven engines only, and no absolute paths.

    Raises:
        RunFolderError: the run or a file of it cannot be read, or `out` is not empty.
        ConfigError: the run has no proven engine.
    """
    manifest = public_manifest(run)
    text = (manifest.model_dump_json(indent=2) + "\n").encode()
    tokenizer = manifest.input.tokenizer
    verify_files(run, (tokenizer,))
    with new_folder(out) as folder:
        (folder / "blobs/sha256").mkdir(parents=True)
        files = {tokenizer.path: run / tokenizer.path}
        layers = [_layer(folder, files, {MANIFEST_FILE: text})]
        for engine in manifest.engines:
            progress.note(f"{engine.name}: {ROOT}/{PurePath(engine.files[0].path).parent}")
            verify_files(run, engine.files)
            layers.append(_layer(folder, {file.path: run / file.path for file in engine.files}))
        image = _image(folder, manifest, layers, tag)
    return [engine.name for engine in manifest.engines], f"sha256:{image.digest}"


def push_image(run: Path, reference: str, progress: Progress) -> tuple[list[str], str]:
    """Push the image to a registry with skopeo; `reference` is HOST/NAME:TAG.

    Returns:
        The names of its engines, and its digest.

    Raises:
        ConfigError: the reference is not HOST/NAME:TAG, or skopeo cannot push.
        MissingDependencyError: skopeo is not installed.
    """
    name, _, tag = reference.rpartition("/")[2].partition(":")
    if not name or "/" not in reference:
        message = f"--to oci://{reference}: expected oci://HOST/NAME:TAG"
        raise ConfigError(message, "for example oci://localhost:5000/topics:1")
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        message = "skopeo, which pushes the image, is not installed"
        raise MissingDependencyError(
            message, "apt-get install skopeo, or --to oci:DIR and push DIR with another program"
        )
    with tempfile.TemporaryDirectory(prefix="pipework-image-") as temporary:
        layout = Path(temporary) / "image"
        engines, digest = publish_oci(run, layout, progress, tag or LATEST)
        progress.note(f"pushing {digest} to {reference}")
        local = urlsplit(f"//{reference}").hostname in LOCAL
        done = subprocess.run(  # noqa: S603  (no shell)
            [
                skopeo,
                "copy",
                "--preserve-digests",
                *(["--dest-tls-verify=false"] if local else []),
                f"oci:{layout}:{tag or LATEST}",
                f"docker://{reference}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        message = f"skopeo cannot push to {reference}: {reason}"
        raise ConfigError(message, "check the name, and log in: skopeo login HOST")
    return engines, digest


def _layer(
    folder: Path, files: Mapping[str, Path], contents: Mapping[str, bytes] | None = None
) -> Blob:
    """Write a tar file with files and contents, by their paths below /models."""
    partial = folder / "layer.partial"
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        for parent in _parents([*files, *(contents or {})]):
            entry = tarfile.TarInfo(parent)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, content in sorted((contents or {}).items()):
            _add(tar, name, io.BytesIO(content), len(content))
        for name, path in sorted(files.items()):
            with path.open("rb") as stream:
                _add(tar, name, stream, path.stat().st_size)
    return _store(folder, partial, f"{MEDIA}.layer.v1.tar")


def _parents(names: Iterable[str]) -> list[str]:
    """Return the folders of files, the outer ones first."""
    paths = [PurePath(ROOT) / name for name in names]
    return sorted({str(parent) for path in paths for parent in [*path.parents][:-1]})


def _add(tar: tarfile.TarFile, name: str, stream: Any, size: int) -> None:  # noqa: ANN401  (any binary stream)
    entry = tarfile.TarInfo(f"{ROOT}/{name}")  # without owner and time, so that digests repeat
    entry.size, entry.mode = size, 0o644
    tar.addfile(entry, stream)


def _store(folder: Path, partial: Path, media_type: str) -> Blob:
    digest, size = file_digest(partial), partial.stat().st_size
    partial.rename(folder / "blobs/sha256" / digest)
    return Blob(media_type=media_type, digest=digest, size=size)


def _store_json(folder: Path, fields: Mapping[str, object], media_type: str) -> Blob:
    partial = folder / "json.partial"
    partial.write_text(json.dumps(fields, sort_keys=True), encoding="utf-8")
    return _store(folder, partial, media_type)


def _image(folder: Path, manifest: Manifest, layers: list[Blob], tag: str) -> Blob:
    created = manifest.identity.created_at.isoformat()
    config = {
        "created": created,
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Labels": {"org.opencontainers.image.title": manifest.identity.name}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
    }
    fields = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": _store_json(folder, config, f"{MEDIA}.config.v1+json").descriptor(),
        "layers": [layer.descriptor() for layer in layers],
        "annotations": {"org.opencontainers.image.created": created, **proofs(manifest)},
    }
    image = _store_json(folder, fields, f"{MEDIA}.manifest.v1+json")
    named = image.descriptor(annotations={"org.opencontainers.image.ref.name": tag})
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [named]}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    return image
