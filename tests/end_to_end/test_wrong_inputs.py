"""Each wrong input ends with its exit code and one line that names the fault."""

import re

import pytest

from tests.end_to_end.wrong_inputs import (
    configs,
    data_files,
    exports,
    limits,
    model_folders,
    options,
    outputs,
    predictions,
    run_folders,
    train_settings,
)

TABLES = (
    *(configs.FILES, train_settings.SETTINGS, train_settings.SEARCHES),
    *(data_files.FILES, data_files.TABLES, data_files.CHECKS),
    *(model_folders.NAMES, model_folders.FOLDERS),
    *(run_folders.MANIFESTS, run_folders.EVAL, predictions.PREDICT),
    *(exports.EXPORTS, outputs.TRAINS),
    *(options.GENERAL, options.SERVERS, options.BENCHES),
    *(limits.PERMISSIONS, limits.DISKS),
)
RUNS = {"RUN": "trained_run", "ENGINE": "exported_run"}
CASES = {name: case for table in TABLES for name, case in table.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_is_one_line(name, tmp_path, monkeypatch, request):
    case = CASES[name]
    case.prepare(tmp_path, {run: request.getfixturevalue(RUNS[run]) for run in case.runs(RUNS)})
    monkeypatch.chdir(tmp_path)
    done = case.run(tmp_path)
    stderr = done.stderr.replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
    stderr = re.sub(r"\b(?=\d*[a-f])[0-9a-f]{12,64}\b", "DIGEST", stderr)
    messages = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert messages == [f"error: {case.error}"], stderr
    assert done.returncode == case.code
    assert "Traceback" not in stderr


def test_each_wrong_input_has_a_name_of_its_own():
    assert len(CASES) == sum(map(len, TABLES))


def test_there_are_many_different_wrong_inputs():
    assert len({case.error for case in CASES.values()}) >= 150
