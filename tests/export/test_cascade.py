"""A run with a first stage."""

import numpy as np
import pytest

from pipework.data.splits import split_source
from pipework.errors import ChangedFileError, CheckFailedError, DataError
from pipework.export.config import DecisionSettings, ExportSettings
from pipework.export.inference import predict_run
from pipework.export.publish.folder import public_manifest
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.cascade import FOLDER
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.first_stage import cascade_of
from tests.export.cascades import cascaded


def test_a_run_gets_its_linear_model_as_first_stage(proven):
    record = cascaded(proven, max_difference=0.3)
    manifest = read_manifest(proven)
    assert manifest.cascade == record
    assert (record.first, record.source, record.rows) == ("linear", "dev", 408)
    assert record.differing <= 0.3 * 408
    assert 0 < record.answered < 408
    rows = [*split_source(proven, manifest, "dev").rows()]
    first, both, alone = (
        [prediction.label for _, prediction in predict_run(*arguments)]
        for arguments in (
            (proven / FOLDER, rows),
            (proven, rows),
            (proven, rows, record.engine),
        )
    )
    assert sum(x != y for x, y in zip(both, alone, strict=True)) == record.differing
    assert all(label in found for label, *found in zip(both, first, alone, strict=True))
    right = np.mean([label == row.label for label, row in zip(both, rows, strict=True)])
    assert record.score + record.gain[0] == pytest.approx(right)
    assert public_manifest(proven).cascade is None
    assert cascaded(proven, max_difference=0) is None
    assert read_manifest(proven).cascade is None
    assert not (proven / FOLDER).exists()


def test_texts_without_labels_prove_a_cascade_too(cascade_run, tmp_path):
    rows = tmp_path / "traffic.txt"
    texts = (f"report {number} of the match" for number in range(300))
    rows.write_text("text\n" + "\n".join(texts) + "\n")
    record = cascaded(cascade_run, max_difference=0.9, rows=rows)
    assert (record.source, record.rows, record.score) == ("traffic.txt", 300, None)


def test_an_engine_that_is_built_again_needs_a_new_proof(cascade_run):
    cascaded(cascade_run, max_difference=0.3)
    manifest = read_manifest(cascade_run)
    engine = manifest.engines[0].model_copy(update={"files": manifest.engines[0].files[:1]})
    with pytest.raises(ChangedFileError, match="proven with another engine onnx-fp32"):
        cascade_of(manifest.model_copy(update={"engines": (engine,)}), None)
    export(cascade_run, NullProgress(), settings=ExportSettings(speed_s=0))
    again = read_manifest(cascade_run)  # the same files
    assert cascade_of(again, None) == manifest.cascade


def test_a_limit_that_the_rows_cannot_show_is_refused(cascade_run):
    before = read_manifest(cascade_run)
    with pytest.raises(CheckFailedError, match="408 rows of dev cannot show") as caught:
        cascaded(cascade_run, max_difference=0.001)
    assert "at least 3,523 rows are needed" in caught.value.hint
    assert read_manifest(cascade_run) == before
    assert not (cascade_run / FOLDER).exists()


def test_another_task_removes_the_cascade(cascade_run):
    cascaded(cascade_run, max_difference=0.3)
    settings = ExportSettings(speed_s=0, decision=DecisionSettings(min_score=0.1))
    export(cascade_run, NullProgress(), settings=settings)
    assert read_manifest(cascade_run).cascade is None


def test_a_file_without_rows_is_refused(cascade_run, tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\n")
    with pytest.raises(DataError, match="holds no rows"):
        cascaded(cascade_run, rows=tmp_path / "a.tsv")
