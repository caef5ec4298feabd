"""Round the weights of a layer so that the errors of its outputs cancel.

GPTQ (Frantar et al. 2022, arXiv:2210.17323): the weights of the inputs are rounded one input after
the other, and those of later inputs, which correlate with it, compensate the error. Here each
weight moves by less than a step, so that a rounded matrix can be compared with its source.

Shapes: K inputs and M outputs of a layer.
"""

import numpy as np
from numpy.typing import NDArray

DAMPING = 0.01  # of the mean square of the inputs, for inputs that depend on each other
BLOCK = 128  # inputs whose errors move to later blocks together, in one product
Floats = NDArray[np.float64]


def inverse_root(moments_KK: NDArray[np.float32]) -> Floats:
    """Return the upper triangular matrix U with U'U the inverse of the products of inputs.

    Args:
        moments_KK: products of the inputs, summed over the tokens of calibration rows.
    """
    damped_KK = np.asarray(moments_KK, np.float64).copy()
    diagonal = np.einsum("kk->k", damped_KK)
    diagonal += DAMPING * diagonal.mean() + np.finfo(np.float32).tiny
    return np.asarray(np.linalg.cholesky(np.linalg.inv(damped_KK)).T)


def compensated_integers(
    values_KM: NDArray[np.float32], steps_KM: NDArray[np.float32], inverse_KK: Floats
) -> NDArray[np.int8]:
    """Return int8 weights [K, M], each less than a step from its value.

    Args:
        values_KM: the weights.
        steps_KM: the scale of each weight, at least 1/127 of it.
        inverse_KK: see `inverse_root`.
    """
    exact_KM = values_KM / steps_KM
    left_KM = np.asarray(values_KM, np.float64).copy()
    integers_KM = np.empty(values_KM.shape, np.int8)
    for start in range(0, len(values_KM), BLOCK):
        end = min(start + BLOCK, len(values_KM))
        errors_BM = np.empty((end - start, values_KM.shape[1]))
        for k in range(start, end):
            # The largest weight of a scale can be 127 plus a rounding error.
            low_M, high_M = np.clip((np.floor(exact_KM[k]), np.ceil(exact_KM[k])), -127, 127)
            integers_KM[k] = np.clip(np.round(left_KM[k] / steps_KM[k]), low_M, high_M)
            error_M = (left_KM[k] - integers_KM[k] * steps_KM[k]) / inverse_KK[k, k]
            left_KM[k:end] -= np.outer(inverse_KK[k, k:end], error_M)
            errors_BM[k - start] = error_M
        left_KM[end:] -= inverse_KK[start:end, end:].T @ errors_BM
    return integers_KM
