"""Default tolerances of the parity check, by precision.

See `pipework.run_folder.engine_record.Tolerance` for the meaning of each limit. `--set
tolerances.int8.max_abs=3` overrides one of them; the manifest records the tolerance that was used.
"""

from pipework.run_folder.engine_record import Precision, Tolerance

# Each limit of differences is a few times the difference measured for correct engines, padded and
# packed, edge cases included. fp32: MRPC, SemEval-2010 task 8 (entity head) and THUCNews (cnn
# head); bf16: the first two; int8: dev rows of MRPC and SST-2. fp16 is set between fp32 and bf16.
#
#           max_abs  mean_abs  spread   label changes
#     fp32  1.3e-5   1.2e-6    8e-6     none
#     bf16  0.08     0.006     0.02     0.3 %
#     int8  0.55     0.04      0.001    1.7 %
#
# For int8 the task's score matters more than the logits, so `flips` and `score_drop` decide and the
# limits of logits are loose. The spread stays narrow: activations are scaled per token or by fixed
# ranges, so other inputs of a batch must not change a result. This rejects runtimes that compute
# a range over the whole batch.
#
# For fp32 `score_drop` allows what rounding takes from a correlation without changing any label. A
# correlation is the cosine of an angle, which differences of 1e-4 standard deviations change by
# no more than 1e-4.
#
# Errors of correct engines of the sample and MRPC, relative to the rounded checkpoint: root mean
# square of a class up to 1.4 (1.7 to 2.7 in the band of the 16 shortest inputs), mean up to 0.34,
# for bf16 0.66.
TOLERANCES = {
    Precision.FP32: Tolerance(
        max_abs=1e-4, mean_abs=5e-5, spread=1e-4, flips=0.001, flips_outside=0, score_drop=1e-4
    ),
    Precision.FP16: Tolerance(
        max_abs=2e-2,
        mean_abs=4e-3,
        spread=1e-2,
        flips=0.005,
        flips_outside=0,
        score_drop=0.001,
        error_ratio=4,
        bias_ratio=1.5,
    ),
    Precision.BF16: Tolerance(
        max_abs=0.25,
        mean_abs=0.03,
        spread=0.1,
        flips=0.01,
        flips_outside=0.001,
        score_drop=0.002,
        error_ratio=4,
        bias_ratio=1.5,
    ),
    Precision.INT8: Tolerance(
        max_abs=2.0,
        mean_abs=0.1,
        spread=0.2,
        flips=0.03,
        flips_outside=0.005,
        score_drop=0.005,
        error_ratio=4,
        bias_ratio=1.5,
    ),
}
