"""Levels of two results are the same load by numbers, not by how these are rounded."""

from pipework.benchmarks.compare.match_levels import match, names


def rates(served, open_level, *given):
    return served.model_copy(update={"levels": tuple(open_level(rate) for rate in given)})


def pairs(found):
    return [(before.load, after.load) for before, after in found.pairs]


def test_rates_that_are_shown_alike_are_levels_of_their_own(served, open_level):
    before = rates(served, open_level, 100.2, 100.4)
    found = match(before, rates(served, open_level, 100.4, 100.2))
    assert pairs(found) == [(100.2, 100.2), (100.4, 100.4)]
    assert names(found.pairs) == ["100.2 requests/s, poisson", "100.4 requests/s, poisson"]


def test_a_rate_that_differs_by_a_hair_is_the_same_load(served, open_level):
    before = rates(served, open_level, 99.96, 200)
    found = match(before, rates(served, open_level, 100.04, 210))
    assert pairs(found) == [(99.96, 100.04)]
    assert names(found.pairs) == ["99.96 requests/s, poisson (100.04 requests/s, poisson)"]
    assert [one.load for one in (*found.before, *found.after)] == [200, 210]


def test_the_nearest_is_taken_whatever_comes_first(served, open_level):
    before = rates(served, open_level, 100.5, 100)
    found = match(before, rates(served, open_level, 100, 99.9))
    assert pairs(found) == [(100.5, 99.9), (100, 100)]


def test_a_load_that_was_measured_twice_is_compared_twice(served, open_level):
    again = rates(served, open_level, 50, 50)
    found = match(again, again)
    assert len(found.pairs) == 2
    assert all(before is after for before, after in found.pairs)
    assert names(found.pairs) == ["50 requests/s, poisson", "50 requests/s, poisson, no. 2"]


def test_clients_stages_and_batches_are_matched_as_they_are(served, offline, open_level):
    assert len(match(served, served).pairs) == 5
    assert len(match(offline, offline).pairs) == 6
    other = match(offline, served)
    assert (len(other.pairs), len(other.before), len(other.after)) == (0, 6, 5)
    rate = rates(served, open_level, 8)
    assert match(served, rate).pairs == ()  # 8 clients are not 8 requests a second
