"""Models logged to MLflow and loaded again, in an environment without torch.

python -m venv DIR && DIR/bin/pip install -e '.[cpu,mlflow]'
MLFLOW_PYTHON=DIR/bin/python pytest tests/export/publish/test_mlflow_model.py
"""

import json
import os
import subprocess

import pytest

from pipework.data.examples import Example
from pipework.export.inference import predict_run
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from tests.commands import pipe

TEXTS = ["The match went to extra time", "明天下午有雷阵雨", ""]
LOAD = """
import json
import sys

import mlflow
import pandas as pd

(logged,) = mlflow.search_logged_models(output_format="list")
model = mlflow.pyfunc.load_model(logged.model_uri)
texts = sys.argv[1:]
frame = model.predict(pd.DataFrame({"text": texts}))
assert frame.equals(model.predict(pd.DataFrame({"text": texts}, dtype=object)))
(run,) = mlflow.search_runs(output_format="list")
print(json.dumps({
    "rows": frame.to_dict("records"),
    "inputs": model.metadata.get_input_schema().input_names(),
    "metrics": run.data.metrics,
    "tags": run.data.tags,
    "loaded": sorted({"torch", "transformers"} & sys.modules.keys()),
}))
"""


@pytest.fixture(scope="module")
def python():
    program = os.environ.get("MLFLOW_PYTHON")
    if program is None:
        pytest.skip("mlflow is absent: set MLFLOW_PYTHON to a Python that has it")
    return program


def test_a_logged_model_predicts_the_same_without_torch(python, exported_run, tmp_path):
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }

    def start(*words):
        done = subprocess.run(
            [python, "-P", *map(str, words)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = start("-m", "pipework.cli", "publish", exported_run, "--to", "mlflow:topics")
    assert "published: models:/" in shown
    assert "with onnx-fp32" in shown
    found = json.loads(start("-c", LOAD, *TEXTS).splitlines()[-1])
    expected = predict_run(exported_run, [Example(text=text) for text in TEXTS], "onnx-fp32")
    for row, (_, prediction) in zip(found["rows"], expected, strict=True):
        assert row["label"] == prediction.label
        scores = {key.removeprefix("score_"): value for key, value in row.items() if "_" in key}
        assert scores == pytest.approx(prediction.scores, abs=1e-6)
    assert found["loaded"] == []
    assert found["inputs"] == ["text"]
    accuracy = read_manifest(exported_run).data.metrics["dev"].scores[Metric.ACCURACY]
    assert found["metrics"]["dev_accuracy"] == accuracy
    assert found["tags"]["pipework.engine.onnx-fp32"].startswith("proven on ")


def test_a_missing_mlflow_is_named(exported_run):
    done = pipe("publish", exported_run, "--to", "mlflow:topics")
    assert done.returncode == 2
    assert "error: mlflow is required and not installed" in done.stderr
    assert "hint: pip install 'pipework[mlflow]'" in done.stderr
