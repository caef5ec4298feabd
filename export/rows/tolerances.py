"""What an engine may differ by, for each precision: the one table.

See `pipework.run_folder.engine_record.Tolerance` for what each limit means; `--set tolerances.int8.max_abs=3`
sets one by name, and what was held to is kept in the manifest.

Each limit of differences is a few times what right engines were measured to differ by: with
float32, MRPC, SemEval-2010 task 8 (entity head) and THUCNews (cnn head); with bf16, the first two;
both padded and packed, strange texts included. With int8, rows of dev of MRPC and SST-2 only; fp16
is set between its neighbours. Largest difference, mean, spread, and labels changed:

    fp32  1.3e-5   1.2e-6   8e-6    none
    bf16  0.08     0.006    0.02    0.3 %
    int8  0.55     0.04     0.001   1.7 %

For int8 the logits matter less than what becomes of them, so there `flips` and `score_drop` decide:
a mean of 0.1 and a largest difference of 2 let pass what the task does not feel. Its spread is held
as narrowly as that of bf16: each token has its own scale or a fixed one, so that company cannot
change an answer; scales found over a whole batch, as runtimes make them by themselves, are refused.

For fp32 the score may fall by what `max_abs` may take from a correlation, which rounding moves
without changing any label: a correlation is the cosine of an angle, and answers that differ by
1e-4 of their standard deviation turn it by no more than that.
"""

from pipework.run_folder.engine_record import Precision, Tolerance

TOLERANCES = {
    Precision.FP32: Tolerance(
        max_abs=1e-4, mean_abs=5e-5, spread=1e-4, flips=0.001, flips_outside=0, score_drop=1e-4
    ),
    Precision.FP16: Tolerance(
        max_abs=2e-2, mean_abs=4e-3, spread=1e-2, flips=0.005, flips_outside=0, score_drop=0.001
    ),
    Precision.BF16: Tolerance(
        max_abs=0.25, mean_abs=0.03, spread=0.1, flips=0.01, flips_outside=0.001, score_drop=0.002
    ),
    Precision.INT8: Tolerance(
        max_abs=2.0, mean_abs=0.1, spread=0.2, flips=0.03, flips_outside=0.005, score_drop=0.005
    ),
}
