"""What an engine may differ by, for each precision: the one table.

See `pipework.engine_record.Tolerance` for what each limit means.
"""

from pipework.engine_record import Precision, Tolerance

TOLERANCES = {
    Precision.FP32: Tolerance(
        max_abs=1e-4, mean_abs=5e-5, spread=1e-4, flips=0.001, flips_outside=0, score_drop=0
    ),
    Precision.FP16: Tolerance(
        max_abs=2e-2, mean_abs=4e-3, spread=2e-2, flips=0.005, flips_outside=0, score_drop=0.001
    ),
    Precision.BF16: Tolerance(
        max_abs=0.25, mean_abs=0.05, spread=0.25, flips=0.01, flips_outside=0.001, score_drop=0.002
    ),
    Precision.INT8: Tolerance(
        max_abs=2.0, mean_abs=0.25, spread=2.0, flips=0.03, flips_outside=0.005, score_drop=0.005
    ),
}
