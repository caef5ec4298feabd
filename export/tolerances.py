"""What an engine may differ by, for each precision: the one table."""

from pipework.engine_record import Precision, Tolerance

TOLERANCES = {
    Precision.FP32: Tolerance(max_abs=1e-4, spread=1e-4, flips_outside=0, score_drop=0),
    Precision.FP16: Tolerance(max_abs=2e-2, spread=2e-2, flips_outside=0, score_drop=0.001),
    Precision.BF16: Tolerance(max_abs=0.25, spread=0.25, flips_outside=0, score_drop=0.002),
    Precision.INT8: Tolerance(max_abs=2.0, spread=2.0, flips_outside=0.01, score_drop=0.005),
}
