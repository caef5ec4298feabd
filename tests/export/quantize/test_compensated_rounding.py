"""Compensated rounding: outputs are nearer than with the nearest integers, weights stay near."""

import numpy as np

from pipework.export.quantize.compensated_rounding import compensated_integers, inverse_root

RNG = np.random.default_rng(0)
K, M, TOKENS = 200, 24, 4000


def layer(correlated):
    """Return inputs, weights and steps of a layer."""
    x_SK = RNG.normal(size=(TOKENS, K)).astype(np.float32)
    if correlated:
        x_SK = x_SK @ RNG.normal(size=(K, K)).astype(np.float32) + 3
        x_SK[:, K // 2 :] = x_SK[:, : K // 2] + 0.1 * x_SK[:, K // 2 :]
    weights_KM = RNG.normal(size=(K, M)).astype(np.float32)
    steps_KM = np.broadcast_to(np.abs(weights_KM).max(axis=0) / 127, (K, M)).astype(np.float32)
    return x_SK, weights_KM, steps_KM


def error(x_SK, weights_KM, steps_KM, integers_KM):
    return np.sqrt(np.square(x_SK @ (integers_KM * steps_KM - weights_KM)).mean())


def moments(x_SK):
    return (x_SK.T @ x_SK / len(x_SK)).astype(np.float32)


def test_errors_of_correlated_inputs_compensate_each_other():
    x_SK, weights_KM, steps_KM = layer(correlated=True)
    found = compensated_integers(weights_KM, steps_KM, inverse_root(moments(x_SK)))
    nearest = np.round(weights_KM / steps_KM)
    assert found.dtype == np.int8
    new_SK = x_SK[::-1] * RNG.normal(1, 0.1, (TOKENS, 1))  # inputs of other sizes
    assert error(new_SK, weights_KM, steps_KM, found) < 0.7 * error(
        new_SK, weights_KM, steps_KM, nearest
    )


def test_a_weight_moves_by_less_than_a_step():
    x_SK, weights_KM, steps_KM = layer(correlated=True)
    found = compensated_integers(weights_KM, steps_KM, inverse_root(moments(x_SK)))
    moved = np.abs(found - weights_KM / steps_KM)
    assert 0.5 < moved.max() < 1
    assert np.abs(found.astype(int)).max() <= 127


def test_weights_of_independent_inputs_are_rounded_to_the_nearest_integer():
    _, weights_KM, steps_KM = layer(correlated=False)
    found = compensated_integers(weights_KM, steps_KM, inverse_root(np.eye(K, dtype=np.float32)))
    np.testing.assert_array_equal(found, np.round(weights_KM / steps_KM))


def test_the_largest_weight_of_a_scale_does_not_overflow():
    x_SK, weights_KM, steps_KM = layer(correlated=True)
    steps_KM = steps_KM * np.float32(1 - 1e-6)
    found = compensated_integers(weights_KM, steps_KM, inverse_root(moments(x_SK)))
    assert np.abs(found - weights_KM / steps_KM).max() < 1


def test_inputs_that_are_always_zero_or_equal_are_allowed():
    x_SK, weights_KM, steps_KM = layer(correlated=False)
    x_SK[:, 0], x_SK[:, 2] = 0, x_SK[:, 1]
    found = compensated_integers(weights_KM, steps_KM, inverse_root(moments(x_SK)))
    assert np.abs(found - weights_KM / steps_KM).max() < 1
    constant = np.zeros((K, K), np.float32)
    np.testing.assert_array_equal(
        compensated_integers(weights_KM, steps_KM, inverse_root(constant)),
        np.round(weights_KM / steps_KM),
    )
