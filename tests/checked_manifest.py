"""Manifests for tests, as an export would write them."""

from typing import Any

from pipework.run_folder.engine_record import Parity, Tolerance
from pipework.run_folder.manifest import Manifest
from pipework.tasks.kinds import Metric

TOLERANCE = Tolerance(max_abs=1e-4, mean_abs=1e-5, spread=1e-4, flips_outside=0, score_drop=0)


def as_checked(manifest: Manifest) -> Manifest:
    """Return a manifest whose engines were checked with its model."""
    subject = manifest.subject
    engines = (engine.model_copy(update={"subject": subject}) for engine in manifest.engines)
    return manifest.model_copy(update={"engines": tuple(engines)})


def parity(**fields: Any) -> Parity:
    """Return a parity check without differences, which has passed; with the given fields."""
    same = dict.fromkeys(("max_abs", "mean_abs", "max_rel", "max_kl", "spread"), 0.0)
    unchanged = dict.fromkeys(("flips", "flips_outside", "error_bound", "max_change"), 0)
    checked = {
        "reference": "checkpoint",
        "rows": 10,
        "shapes": ((1, 8),),
        "argmax_agreement": 1,
        "metric": Metric.ACCURACY,
        "scores": None,
        "processor": "a processor",
        "tolerance": TOLERANCE,
        "passed": True,
    }
    return Parity.model_validate(same | unchanged | checked | fields)
