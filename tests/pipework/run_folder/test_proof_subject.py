"""A proof holds for what was checked: what changed since then is not used, and is named."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from pipework.data.examples import Example
from pipework.errors import ChangedFileError
from pipework.export.config import ExportSettings, TritonSettings
from pipework.export.predict import predict_run
from pipework.export.publish.folder import publish_folder
from pipework.export.publish.oci import publish_oci
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.models.open_models import open_predictor
from pipework.terminal import show_manifest
from pipework.train.model import checkpoint

QUICK = ExportSettings(speed_s=0, dev_rows=20)
AGAIN = QUICK.model_copy(update={"rebuild": False})


def negated(run):
    """Negate the last layer: each prediction of two labels changes, and no shape."""
    path = run / checkpoint.FOLDER / "model.safetensors"
    weights = load_file(path)
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = -weights[name]
    save_file(weights, path, {"format": "pt"})


def edited(run, section, **changes):
    manifest = read_manifest(run)
    part = getattr(manifest, section).model_copy(update=changes)
    write_manifest(run, manifest.model_copy(update={section: part}))


@pytest.fixture(scope="session")
def other_run(trained_run, tmp_path_factory):
    """A run of equal shape with other weights, and a proven engine; read-only."""
    run = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(trained_run, run)
    negated(run)
    edited(run, "model", checkpoint=checkpoint.records(run))
    edited(run, "data", metrics={})  # the scores are of the other weights
    export(run, NullProgress(), settings=QUICK)
    return run


@pytest.fixture
def with_other_engine(proven, other_run):
    shutil.rmtree(proven / "engines")
    shutil.copytree(other_run / "engines", proven / "engines")
    engines = read_manifest(other_run).engines
    write_manifest(proven, read_manifest(proven).model_copy(update={"engines": engines}))
    return proven


@pytest.fixture
def with_other_labels(proven):
    edited(proven, "task", labels=read_manifest(proven).task.labels[::-1])
    return proven


@pytest.fixture
def with_other_length(proven):
    edited(proven, "input", max_length=8)
    return proven


@pytest.fixture
def with_other_checkpoint(proven):
    negated(proven)
    return proven


def predicted(run):
    return list(predict_run(run, [Example(text="rain")]))


def measured_again(run):
    return export(run, NullProgress(), settings=AGAIN)


def published(run):
    return publish_folder(run, run.with_name("published"), NullProgress())


def published_image(run):
    return publish_oci(run, run.with_name("image"), NullProgress())


def added_to_triton(run):
    models = run.with_name("models")
    return add_version(run, models, TritonSettings(), EngineChoice(), NullProgress())


USES = (open_predictor, predicted, Scorer, measured_again, published, published_image)
USES = (*USES, added_to_triton)
PLANTED = {
    "with_other_engine": "checkpoint",
    "with_other_labels": "labels",
    "with_other_length": "input",
    "with_other_checkpoint": "model.safetensors changed",
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("planted", PLANTED)
def test_an_engine_is_not_used_for_a_run_that_it_was_not_checked_with(request, planted, use):
    run = request.getfixturevalue(planted)
    with pytest.raises(ChangedFileError, match=PLANTED[planted]):
        use(run)


@pytest.mark.parametrize("planted", PLANTED)
def test_the_description_of_a_run_names_what_changed(request, planted, capsys):
    run = request.getfixturevalue(planted)
    show_manifest(run, read_manifest(run))
    line = capsys.readouterr().out.splitlines()[-1]
    assert "cannot be used" in line
    assert PLANTED[planted] in line
