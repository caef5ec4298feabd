"""Turns of clients."""

import pytest

from pipework.serve.request.turns import ClientTurns


def test_a_client_has_one_item_in_each_round_and_a_new_one_comes_last() -> None:
    turns = ClientTurns[int]()
    for number, client in enumerate("aaabb"):
        turns.add(client, number)
    assert (turns.take(), len(turns)) == (0, 4)
    turns.add("c", 5)
    turns.add("a", 6)
    assert [turns.take() for _ in range(len(turns))] == [3, 1, 5, 4, 2, 6]
    assert not turns


def test_removed_items_have_no_turn() -> None:
    turns = ClientTurns[int]()
    for number, client in enumerate("aab"):
        turns.add(client, number)
    for client, number in (("a", 0), ("b", 2), ("b", 2), ("c", 3)):
        turns.remove(client, number)
    assert (len(turns), turns.take(), len(turns)) == (1, 1, 0)
    with pytest.raises(KeyError):
        turns.take()
