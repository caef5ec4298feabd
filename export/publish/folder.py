"""Write a run in the layout of model hubs, which transformers, onnxruntime and optimum open.

config.json, model.safetensors, tokenizer.json, tokenizer_config.json
onnx/model.onnx, onnx/model_quantized.onnx, ...      the proven padded engines
openvino/openvino_model.xml, ...
pipework.json                                        what these files have no place for
README.md                                            the model card
"""

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath

from pydantic import ValidationError

from pipework.errors import ConfigError, RunFolderError
from pipework.export.publish.model_card import PublishedEngine, base_model, model_card
from pipework.progress import Progress, counted
from pipework.record import Record
from pipework.run_folder.engine_record import EngineRecord, Layout
from pipework.run_folder.files import FileRecord, verify_files, verify_present
from pipework.run_folder.manifest import Manifest, read_classifier, write_manifest
from pipework.serve.engines.runtimes import RUNTIMES, runtime_of
from pipework.tasks.registry import AnyTask
from pipework.train.config.model import LINEAR_FAMILY

PUBLISHED_FILE = "pipework.json"


class PublishedModel(Record):
    """The part of a manifest that a published folder keeps, for an import from it."""

    pipework: str
    task: AnyTask
    fields: tuple[str, ...]
    max_length: int
    engines: tuple[PublishedEngine, ...]

    def lines(self, place: str) -> tuple[str, ...]:
        """Return the path of each engine below a place, with its name in the run."""
        lines = tuple(f"{place}/{engine.file} ({engine.name})" for engine in self.engines)
        return lines or (f"{place}, without engines",)

    @classmethod
    def of(cls, manifest: Manifest, engines: tuple[PublishedEngine, ...]) -> "PublishedModel":
        """Return the part of a manifest."""
        return cls(
            pipework=manifest.identity.pipework,
            task=manifest.task,
            fields=manifest.input.fields,
            max_length=manifest.input.max_length,
            engines=engines,
        )

    @classmethod
    def read(cls, path: Path) -> "PublishedModel":
        """Read the file of a published folder.

        Raises:
            ConfigError: it is damaged or of another version.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            message = f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
            raise ConfigError(message, "publish the run again with this version") from error


def publish_folder(
    run: Path, out: Path, progress: Progress, hub_id: str | None = None
) -> PublishedModel:
    """Write the proven engines and the checkpoint of a run into a new folder.

    `hub_id` is the name in the code of the model card, or else the name of the folder.

    Raises:
        RunFolderError: the run or a file of it cannot be read, or `out` is not empty.
        ConfigError: the run has no proven engine with this layout, or its head is no class of
            transformers. A cross-encoder with an activation is published without engines.
    """
    manifest = _checked_manifest(run)
    _check_form(run, manifest)
    names = published_names(manifest)
    if _has_activation(run, manifest):
        progress.note("no engines: they compute the activation, which programs apply themselves")
        names = {}
    elif not names:
        message = f"{run} has no proven padded engine of onnx or openvino"
        raise ConfigError(message, f"build one first: pipe export {run} --to onnx")
    else:
        _note_left_out(manifest, names, progress)
    engines = tuple(
        PublishedEngine(file=str(name), name=engine.name, parity=engine.parity, speed=engine.speed)
        for name, engine in names.items()
        if engine.parity is not None
    )
    published = PublishedModel.of(manifest, engines)
    with new_folder(out) as folder:
        for record in manifest.model.checkpoint:
            _copy(run, record, folder / PurePosixPath(record.path).name)
        for name, engine in names.items():
            progress.note(f"{engine.name}: {name}")
            _copy_engine(run, engine, folder / name)
        text = published.model_dump_json(indent=2)
        (folder / PUBLISHED_FILE).write_text(f"{text}\n", encoding="utf-8")
        card = model_card(run, manifest, engines, progress, hub_id or out.absolute().name)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return published


def check_new(out: Path) -> None:
    """Check that a folder is empty or does not exist.

    Raises:
        RunFolderError: it has files, or is a file.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        message = f"{out} already exists and is not an empty folder"
        raise RunFolderError(message, "choose a new folder")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `out` at the end of the block.

    Raises:
        RunFolderError: as `check_new`; or it cannot be created.
    """
    check_new(out)
    out = out.absolute()
    partial = out.with_name(f"{out.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        message = f"cannot create {partial}: {error.strerror}"
        raise RunFolderError(message, "choose another folder") from error
    try:
        yield partial
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def public_manifest(run: Path) -> Manifest:
    """Return the manifest of a run with the proven engines, without absolute paths.

    Raises:
        RunFolderError: the manifest cannot be read, or the checkpoint or the task has changed since
            the parity check of an engine.
        ConfigError: the run has no proven engine.
    """
    manifest = _checked_manifest(run)
    if not any(engine.proven for engine in manifest.engines):
        message = f"{run} has no proven engine"
        raise ConfigError(message, f"build one first: pipe export {run} --to onnx")
    splits = {
        name: split.model_copy(update={"path": PurePath(split.path).name, "kept": None})
        for name, split in manifest.data.splits.items()
    }
    imported = manifest.imported
    if imported is not None:
        source = base_model(manifest) or PurePath(imported.source).name
        imported = imported.model_copy(update={"source": source})
    return manifest.model_copy(
        update={
            "engines": tuple(engine for engine in manifest.engines if engine.proven),
            "cascade": None,
            "model": manifest.model.model_copy(
                update={"base": base_model(manifest), "checkpoint": (), "kept": {}}
            ),
            "data": manifest.data.model_copy(update={"splits": splits}),
            "imported": imported,
        }
    )


def _checked_manifest(run: Path) -> Manifest:
    manifest = read_classifier(run)
    verify_present(run, manifest.model.checkpoint)
    manifest.check_current(manifest.engines)
    return manifest


def proofs(manifest: Manifest) -> dict[str, str]:
    """Return the proof of each engine in a line, by its name as a label."""
    return {
        f"pipework.engine.{engine.name}": (
            f"proven on {counted(engine.parity.rows, 'row')}, "
            f"logits within {engine.parity.max_abs:.2g}, "
            f"changes {manifest.task.describe_change(engine.parity)}"
        )
        for engine in manifest.engines
        if engine.parity is not None
    }


def copy_public(run: Path, folder: Path) -> Manifest:
    """Copy tokenizer and proven engines, with the manifest of `public_manifest`, and return it.

    Raises:
        PipeError: as `public_manifest`; or a file is missing or has changed.
    """
    manifest = public_manifest(run)
    files = [
        manifest.input.tokenizer,
        *(file for engine in manifest.engines for file in engine.files),
    ]
    for record in files:
        (folder / record.path).parent.mkdir(parents=True, exist_ok=True)
        _copy(run, record, folder / record.path)
    write_manifest(folder, manifest)
    return manifest


def _check_form(run: Path, manifest: Manifest) -> None:
    if manifest.input.marked:
        message = f"{run} reads texts with marked entities, which transformers does not mark"
        raise ConfigError(message, "pipe publish RUN --to oci:DIR keeps the run folder")
    if manifest.task.rows_per_token:
        message = f"{run} finds spans: its engines have no padding, which other programs expect"
        raise ConfigError(message, "pipe publish RUN --to oci:DIR keeps the run folder")
    if not manifest.model.checkpoint:
        message = f"{run} has no checkpoint, as in a container image"
        raise ConfigError(message, "publish the run folder from which the image was made")
    if manifest.model.family == LINEAR_FAMILY:
        message = f"{run} is a linear model, which transformers does not have"
        raise ConfigError(message, "pipe publish RUN --to oci:DIR keeps the run folder")
    if manifest.model.head != "linear":
        message = (
            f"{run} has the head {manifest.model.head}, which transformers does not have; expected "
            "linear"
        )
        raise ConfigError(message, "pipe publish RUN --to oci:DIR keeps the run folder")


def _has_activation(run: Path, manifest: Manifest) -> bool:
    """Whether the engines compute the activation of a cross-encoder.

    Programs that open a published ONNX file of a cross-encoder apply the activation themselves.
    """
    if manifest.imported is None:
        return False
    from pipework.train.model import checkpoint  # noqa: PLC0415  (imports torch)
    from pipework.train.model.encoder_configs import read_config  # noqa: PLC0415
    from pipework.train.model.families import output_activation  # noqa: PLC0415

    return output_activation(read_config(str(run / checkpoint.FOLDER))) is not None


def published_names(manifest: Manifest) -> Mapping[PurePosixPath, EngineRecord]:
    """Return the proven engines by the name of their file, the fastest of each precision."""
    names: dict[PurePosixPath, EngineRecord] = {}
    for engine in manifest.engines:  # the fastest first
        name = runtime_of(engine.format).hub_files.get(engine.precision)
        if name is not None and engine.proven and engine.layout is Layout.PADDED:
            names.setdefault(PurePosixPath(name), engine)
    return names


def _note_left_out(
    manifest: Manifest, names: Mapping[PurePosixPath, EngineRecord], progress: Progress
) -> None:
    """Print the proven engines without a name in the layout."""
    left_out = [
        engine.name for engine in manifest.engines if engine.proven and engine not in names.values()
    ]
    if left_out:
        precisions = (
            f"{runtime.format} ({', '.join(runtime.hub_files)})"
            for runtime in RUNTIMES
            if runtime.hub_files
        )
        layout = f"the fastest padded engine of {' and '.join(precisions)}"
        engines = ", ".join(left_out)
        progress.note(f"not published: {engines}; the layout of model hubs has only {layout}")


def _copy_engine(run: Path, engine: EngineRecord, target: Path) -> None:
    """Copy the files of an engine under the stem of `target`; the reference rows stay."""
    target.parent.mkdir(exist_ok=True)
    for record in engine.files:
        if PurePosixPath(record.path).suffix != ".npz":
            _copy(run, record, target.with_suffix(PurePosixPath(record.path).suffix))


def _copy(run: Path, record: FileRecord, target: Path) -> None:
    verify_files(run, (record,))
    shutil.copyfile(run / record.path, target)
