"""The engines of a run in the order of their speed, measured side by side on this machine."""

from functools import partial

from pipework.errors import PipeError
from pipework.export.benchmark import Opener, measure
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord, Speed
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest, read_manifest, write_manifest
from pipework.serve.engines import open_engine


def rank(subject: Subject, progress: Progress) -> tuple[EngineRecord, ...]:
    """Measure what was proven for this processor, write the order down, and return it.

    An engine that is not measured keeps the speed that it had elsewhere, which says nothing
    here, and stands behind those that are.
    """
    manifest = read_manifest(subject.run)
    speeds: dict[str, Speed] = {}
    seconds = subject.settings.speed_s
    openers = _openers(subject, manifest, progress) if seconds else {}
    if openers:
        rows = [row.encoding for row in subject.dev]
        speeds = measure(openers, rows, seconds, progress)
    engines = [
        record.model_copy(update={"speed": speeds.get(record.name, record.speed)})
        for record in manifest.engines
    ]
    engines.sort(key=lambda one: -speeds[one.name].texts_per_s if one.name in speeds else 0.0)
    write_manifest(subject.run, manifest.model_copy(update={"engines": tuple(engines)}))
    return tuple(engines)


def _openers(subject: Subject, manifest: Manifest, progress: Progress) -> dict[str, Opener]:
    """Return what opens each engine that runs here, after opening each once."""
    openers: dict[str, Opener] = {}
    for record in manifest.engines:
        path = subject.run / record.files[0].path
        opener = partial(open_engine, path, record, manifest, tensorrt=record.tensorrt)
        try:
            verify_files(subject.run, record.files)
            with opener() as engine:
                here = record.parity is not None and record.parity.processor == engine.processor
        except PipeError as error:
            progress.note(f"not measured: {record.name}: {error}")
            continue
        if here:
            openers[record.name] = opener
    return openers
