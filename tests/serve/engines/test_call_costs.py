import pytest

from pipework.serve.engines.collate import LARGEST, REPEATS, SLOW_S, measure


class Clock:
    """A processor on which a call takes `call_s`, and a token `token_s(tokens of the call)`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_s: float, token_s=lambda _: 1e-5):
        self.now_s, self.call_s, self.token_s = 0.0, call_s, token_s
        self.shapes: list[tuple[int, int]] = []
        monkeypatch.setattr("pipework.serve.engines.collate.perf_counter", lambda: self.now_s)

    def call(self, rows: int, width: int) -> None:
        self.shapes.append((rows, width))
        self.now_s += self.call_s + rows * width * self.token_s(rows * width)


def test_the_fixed_cost_of_a_call_is_measured_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=20e-5)
    assert measure(clock.call, longest=128).call_tokens == 20


def test_calls_stay_small_if_larger_ones_are_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = measure(Clock(monkeypatch, call_s=0).call, longest=128)
    assert (costs.call_tokens, costs.most_tokens) == (0, 512)


def test_a_processor_that_likes_large_calls_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=0.05, token_s=lambda tokens: 1e-5 * max(1, 4096 / tokens))
    assert measure(clock.call, longest=128).most_tokens >= 4096


def test_an_engine_with_constant_call_time_gets_the_largest_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, call_s=0.01, token_s=lambda _: 0.0)
    assert measure(clock.call, longest=128).most_tokens == LARGEST


def test_no_call_is_wider_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=1e-4)
    measure(clock.call, longest=32)
    assert max(width for _, width in clock.shapes) == 32


def test_the_cost_of_a_shape_change_is_part_of_the_fixed_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, call_s=0)

    def call(rows: int, width: int) -> None:
        if clock.shapes[-1:] != [(rows, width)]:
            clock.now_s += 30e-5
        clock.call(rows, width)

    assert measure(call, longest=128).call_tokens == 30


def test_work_done_once_per_shape_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=20e-5)

    def call(rows: int, width: int) -> None:
        if (rows, width) not in clock.shapes:
            clock.now_s += 2 * SLOW_S
        clock.call(rows, width)

    assert measure(call, longest=128).call_tokens == 20


def test_calls_that_take_long_are_timed_once_and_no_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, call_s=0.2, token_s=lambda _: 1e-3)
    assert measure(clock.call, longest=128).most_tokens == 512
    assert clock.shapes.count((8, 64)) == 2  # the first is not timed
    assert clock.shapes.count((1, 64)) == 1 + REPEATS
    assert max(rows * width for rows, width in clock.shapes) < 1024


def test_what_rows_do_not_hold_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=20e-5)
    assert measure(clock.call, longest=60).call_tokens == 20  # 512 are 8 rows of 60
