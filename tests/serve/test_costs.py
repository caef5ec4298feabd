import pytest

from serve.costs import LARGEST, measure


class Clock:
    """A processor on which a call takes `call_s`, and a token `token_s(tokens of the call)`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_s: float, token_s=lambda _: 1e-5):
        self.now_s, self.call_s, self.token_s = 0.0, call_s, token_s
        self.widths: set[int] = set()
        monkeypatch.setattr("serve.costs.perf_counter", lambda: self.now_s)

    def call(self, rows: int, width: int) -> None:
        self.widths.add(width)
        self.now_s += self.call_s + rows * width * self.token_s(rows * width)


def test_what_a_call_costs_is_found_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=20e-5)
    assert measure(clock.call, longest=128).call_tokens == 20


def test_where_larger_calls_gain_nothing_they_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = measure(Clock(monkeypatch, call_s=0).call, longest=128)
    assert (costs.call_tokens, costs.most_tokens) == (0, 512)


def test_a_processor_that_likes_large_calls_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=0.05, token_s=lambda tokens: 1e-5 * max(1, 4096 / tokens))
    assert measure(clock.call, longest=128).most_tokens >= 4096


def test_one_whose_time_does_not_depend_on_tokens_gets_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, call_s=0.01, token_s=lambda _: 0.0)
    assert measure(clock.call, longest=128).most_tokens == LARGEST


def test_no_call_is_wider_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, call_s=1e-4)
    measure(clock.call, longest=32)
    assert max(clock.widths) == 32
