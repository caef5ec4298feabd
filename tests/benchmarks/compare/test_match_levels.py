"""Levels are matched by their exact loads, not by rounded labels."""

from pipework.benchmarks.compare.compare import level_names, match_levels


def rates(served, open_level, *values):
    return served.model_copy(update={"levels": tuple(open_level(rate) for rate in values)})


def pairs(matched):
    return [(before.load, after.load) for before, after in matched.pairs]


def test_similar_rates_are_matched_separately(served, open_level):
    before = rates(served, open_level, 100.2, 100.4)
    matched = match_levels(before, rates(served, open_level, 100.4, 100.2))
    assert pairs(matched) == [(100.2, 100.2), (100.4, 100.4)]
    assert level_names(matched.pairs) == ["100.2 requests/s, poisson", "100.4 requests/s, poisson"]


def test_rates_within_1_percent_are_the_same_load(served, open_level):
    before = rates(served, open_level, 99.96, 200)
    matched = match_levels(before, rates(served, open_level, 100.04, 210))
    assert pairs(matched) == [(99.96, 100.04)]
    assert level_names(matched.pairs) == ["99.96 requests/s, poisson (100.04 requests/s, poisson)"]
    assert [level.load for level in (*matched.before, *matched.after)] == [200, 210]


def test_the_nearest_rates_are_matched_first(served, open_level):
    before = rates(served, open_level, 100.5, 100)
    matched = match_levels(before, rates(served, open_level, 100, 99.9))
    assert pairs(matched) == [(100.5, 99.9), (100, 100)]


def test_a_load_measured_twice_is_compared_twice(served, open_level):
    again = rates(served, open_level, 50, 50)
    matched = match_levels(again, again)
    assert len(matched.pairs) == 2
    assert all(before is after for before, after in matched.pairs)
    assert level_names(matched.pairs) == ["50 requests/s, poisson", "50 requests/s, poisson, no. 2"]


def test_clients_stages_and_batches_must_be_equal(served, offline, open_level):
    assert len(match_levels(served, served).pairs) == 5
    assert len(match_levels(offline, offline).pairs) == 6
    other = match_levels(offline, served)
    assert (len(other.pairs), len(other.before), len(other.after)) == (0, 6, 5)
    rate = rates(served, open_level, 8)
    assert match_levels(served, rate).pairs == ()  # 8 clients are not 8 requests/s
