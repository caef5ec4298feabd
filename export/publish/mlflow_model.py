"""Log a run as a pyfunc model of MLflow 3, and the class that MLflow loads.

The model is code (https://mlflow.org/docs/latest/ml/model/models-from-code/) with the files of the
image of `pipework.export.publish.oci` as its artifact; it needs no torch.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

from pipework import __version__
from pipework.data.examples import Example, fit_examples
from pipework.errors import ConfigError
from pipework.export.publish.folder import copy_public, proofs
from pipework.predict.text_model import EngineModel, TextModel, predict_stream
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.serve.engines import open_proven
from pipework.serve.engines.runtimes import runtime_of
from pipework.tasks.heads import HeadsTask
from pipework.tasks.predictions import Prediction
from pipework.tasks.regression import RegressionTask

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"  # name of the artifact
EXAMPLE = "The match went to extra time"
TAG_LENGTH = 5000  # of MLflow
CODE = """\
import mlflow

from pipework.export.publish.mlflow_model import RunModel

mlflow.models.set_model(RunModel())
"""


class RunModel(PythonModel):  # type: ignore[misc]  # mlflow has no types
    """A run folder as a pyfunc model: text columns in, predictions out."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the default engine and the tokenizer."""
        run = Path(context.artifacts[RUN])
        self.manifest = read_classifier(run)
        engine = open_proven(run, self.manifest)
        self.model: TextModel = EngineModel.open(run, self.manifest, engine)

    def predict(
        self,
        context: PythonModelContext,
        model_input: "pd.DataFrame | Sequence[str]",
        params: Mapping[str, Any] | None = None,
    ) -> "pd.DataFrame":
        """Return a row for each input: label (or labels), score, and the scores of all labels.

        Args:
            context: unused; the model was opened before.
            model_input: a frame with the columns `text` and, for pairs, `text_pair`; or texts.
            params: unused.
        """
        del context, params
        import pandas as pd  # noqa: PLC0415  (mlflow loads it with the model)

        frame = model_input
        if not isinstance(frame, pd.DataFrame):
            frame = pd.DataFrame({"text": list(frame)})
        texts = (
            Example(text=row["text"], text_pair=row.get("text_pair"))
            for row in frame.to_dict("records")
        )
        inputs = fit_examples(texts, self.manifest.input, "row", first=1)
        rows = [prediction_row(prediction) for _, prediction in predict_stream(self.model, inputs)]
        return pd.DataFrame(rows)


def prediction_row(prediction: Prediction) -> dict[str, object]:
    """Return a prediction as columns: one per field, and `score_LABEL` for each label."""
    fields: dict[str, object] = {}
    for name in ("label", "labels", "score", "low", "high"):
        if hasattr(prediction, name):
            value = getattr(prediction, name)
            fields[name] = list(value) if isinstance(value, tuple) else value
    scores: Mapping[str, float] = getattr(prediction, "scores", {})
    return fields | {f"score_{label}": scores[label] for label in sorted(scores)}


def publish_mlflow(run: Path, name: str, progress: Progress) -> str:
    """Log the run to the tracking URI of the environment (MLFLOW_TRACKING_URI).

    Scores become metrics, and the proofs of the engines tags. Returns the URI of the model, with
    the names of its engines.

    Raises:
        PipeError: as `publish_oci`; or the run reads texts with marked entities.
    """
    manifest = read_classifier(run)
    reasons = {
        "reads texts with marked entities": manifest.input.marked,
        "has several heads": isinstance(manifest.task, HeadsTask),
        "finds spans": manifest.task.rows_per_token,
    }
    if reason := next((text for text, applies in reasons.items() if applies), None):
        message = f"{run} {reason}, which are not columns of a frame"
        raise ConfigError(message, "pipe publish RUN --to oci:DIR")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with tempfile.TemporaryDirectory(prefix="pipework-mlflow-") as temporary:
        files, script = Path(temporary) / RUN, Path(temporary) / "model.py"
        manifest = copy_public(run, files)
        script.write_text(CODE, encoding="utf-8")
        names = ", ".join(engine.name for engine in manifest.engines)
        progress.note(f"logging {names}")
        extra = runtime_of(manifest.engines[0].format).extra
        with mlflow.start_run(run_name=manifest.identity.name):
            mlflow.set_tags(_tags(manifest))
            mlflow.log_metrics(_metrics(manifest))
            info = mlflow.pyfunc.log_model(
                name=name,
                python_model=str(script),
                artifacts={RUN: str(files)},
                pip_requirements=[f"pipework[{extra}]=={__version__}", "pandas"],
                signature=_signature(manifest),
                input_example={name: [EXAMPLE] for name in manifest.input.fields},
            )
    return f"{info.model_uri} with {names}"


def _signature(manifest: Manifest) -> ModelSignature:
    """Return the columns of `RunModel.predict`."""
    task = manifest.task
    text = DataType.string
    number = DataType.double
    if task.many_labels:
        own = [ColSpec(Array(text), "labels")]
    else:
        # A text without a label has None.
        label = [ColSpec(text, "label", required=False)] if task.has_labels else []
        bounds = ("low", "high") if isinstance(task, RegressionTask) and task.interval else ()
        own = [*label, *(ColSpec(number, name) for name in ("score", *bounds))]
    labels = sorted(task.labels) if task.has_labels else ()
    scores = [ColSpec(number, f"score_{label}") for label in labels]
    inputs = [ColSpec(text, name) for name in manifest.input.fields]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema([*own, *scores]))


def _tags(manifest: Manifest) -> dict[str, str]:
    labels = manifest.task.labels if manifest.task.has_labels else ()
    shown = ", ".join(labels)[:TAG_LENGTH]
    return {"pipework.task": manifest.task.kind, "pipework.labels": shown, **proofs(manifest)}


def _metrics(manifest: Manifest) -> dict[str, float]:
    return {
        f"{split}_{metric}": score
        for split, metrics in manifest.data.metrics.items()
        for metric, score in metrics.scores.items()
    }
