import mmap
import random

import numpy as np
import pytest

from pipework.errors import NotReadyError
from pipework.serve.request.statistics import EngineLoad
from pipework.serve.workers.shared_memory import (
    SLOTS,
    Arena,
    EngineSlots,
    RequestLayout,
    SharedMemory,
    read_logits,
    version_key,
    write_logits,
)
from pipework.text.encoding import Encoding


def encoding(tokens: int, *, type_ids: bool, spans: bool) -> Encoding:
    return Encoding(
        ids=np.arange(tokens, dtype=np.int32) + 70_000,
        type_ids=np.arange(tokens, dtype=np.int8) % 2 if type_ids else None,
        entity_spans=((0, 1), (1, tokens)) if spans else None,
    )


def test_blocks_do_not_overlap_and_all_memory_is_free_at_the_end():
    arena, choose = Arena(10_000), random.Random(7)
    used: list[tuple[int, int]] = []
    refused = 0
    for _ in range(5_000):
        if used and choose.random() < 0.5:
            arena.free(used.pop(choose.randrange(len(used))))
        elif (block := arena.allocate(choose.randrange(1, 900))) is None:
            refused += 1
        else:
            assert block[0] % 8 == 0
            assert all(block[1] <= start or stop <= block[0] for start, stop in used)
            assert block[1] <= 10_000
            used.append(block)
    assert refused
    for block in used:
        arena.free(block)
    assert arena.allocate(10_000) == (0, 10_000)
    assert arena.allocate(1) is None


@pytest.mark.parametrize("type_ids", [True, False])
@pytest.mark.parametrize("spans", [True, False])
@pytest.mark.parametrize("lengths", [[5], [1, 0, 7, 3]])
def test_inputs_and_logits_are_read_as_written(type_ids, spans, lengths):
    given = [encoding(length, type_ids=type_ids, spans=spans) for length in lengths]
    layout = RequestLayout.of(given)
    arena, start = mmap.mmap(-1, 4096), 64
    end = start + layout.size(sum(lengths))
    logits_NC = np.random.default_rng(1).normal(size=(len(lengths), 3)).astype(np.float32)
    layout.write(given, arena, start)
    write_logits(logits_NC, arena, end)
    assert arena[:start] == bytes(start)
    read = layout.read(arena, start)
    assert np.array_equal(read_logits(arena, end, logits_NC.shape), logits_NC)
    for one, other in zip(given, read, strict=True):
        assert np.array_equal(one.ids, other.ids)
        assert one.entity_spans == other.entity_spans
        if type_ids:
            assert np.array_equal(one.type_ids, other.type_ids)
        else:
            assert other.type_ids is None


def test_read_inputs_are_copies():
    arena = mmap.mmap(-1, 4096)
    layout = RequestLayout(inputs=1, type_ids=True, spans=False)
    layout.write([encoding(4, type_ids=True, spans=False)], arena, 0)
    (read,) = layout.read(arena, 0)
    arena[:100] = bytes(100)
    assert read.ids.tolist() == [70_000, 70_001, 70_002, 70_003]
    assert read.type_ids.tolist() == [0, 1, 0, 1]


def load_of(memory: SharedMemory, slots: dict[int, int], connected: set[int] | None = None):
    return memory.load(version_key("b"), slots, {*slots} if connected is None else connected)


def test_a_version_keeps_its_slot_and_counters_in_the_next_engine_process():
    memory = SharedMemory(2)
    first = EngineSlots(memory, 0)
    first.take("a")
    slot, opening = first.take("b")
    load = EngineLoad(waiting_requests=5, batches=10, compute_s=2.5, refused={"queue_full": 3})
    first.write(slot, load, alive=True, ready=True)
    second = EngineSlots(memory, 0)
    assert second.take("b") == (slot, opening)
    second.release_others()
    assert memory.openings_ES[0].tolist().count(0) == SLOTS - 1
    second.write(slot, EngineLoad(batches=1, compute_s=0.5), alive=True, ready=True)
    found = load_of(memory, {0: slot})
    assert (found.waiting_requests, found.batches, found.compute_s) == (0, 11, 3.0)
    assert (found.crashes, found.refused["queue_full"]) == (1, 3)


def test_another_version_in_a_slot_starts_at_0():
    memory = SharedMemory(1)
    slots = EngineSlots(memory, 0)
    taken = [slots.take(str(number)) for number in range(SLOTS)]
    with pytest.raises(NotReadyError, match="128 versions are open"):
        slots.take("one more")
    slots.write(taken[5][0], EngineLoad(batches=9), alive=True, ready=True)
    slots.release(taken[5][0])
    slot, opening = slots.take("one more")
    assert slot == taken[5][0]
    assert opening > max(number for _, number in taken)
    assert load_of(memory, {0: slot}) == EngineLoad(
        engines=0, refused=dict.fromkeys(("queue_full", "not_ready", "deadline", "cancelled"), 0)
    )


def test_the_load_is_that_of_all_engine_processes():
    memory, places = SharedMemory(1, 3), {}
    for engine, skipped in enumerate((0, 1, 2)):  # another slot in each
        slots = EngineSlots(memory, engine)
        for number in range(skipped):
            slots.take(str(number))
        places[engine], _ = slots.take("b")
        waiting = 2 * engine + 1
        load = EngineLoad(
            waiting_requests=waiting,
            waiting_tokens=10 * waiting,
            waiting_s=waiting / 2,
            batches=100,
            refused={"queue_full": engine},
        )
        slots.write(places[engine], load, alive=True, ready=True)
    found = load_of(memory, places)
    assert places == {0: 0, 1: 1, 2: 2}
    assert (found.waiting_requests, found.waiting_tokens) == (1 + 3 + 5, 90)
    assert found.waiting_s == (0.5 + 1.5 + 2.5) / 3  # they compute at the same time
    assert (found.engines, found.batches, found.refused["queue_full"]) == (3, 300, 3)
    found = load_of(memory, places, {0, 2})  # process 1 has ended: only its counters are valid
    assert (found.waiting_requests, found.waiting_tokens, found.waiting_s) == (6, 60, 1.5)
    assert (found.engines, found.batches, found.refused["queue_full"]) == (2, 300, 3)


def test_counters_stay_until_the_last_engine_process_closes_the_version():
    memory = SharedMemory(1, 2)
    engines = [EngineSlots(memory, engine) for engine in range(2)]
    engines[1].take("a")
    places = {engine: slots.take("b")[0] for engine, slots in enumerate(engines)}
    for engine, slots in enumerate(engines):
        load = EngineLoad(batches=100, waiting_tokens=7, refused={"queue_full": 3})
        slots.write(places[engine], load, alive=True, ready=True)
    engines[0].release(places[0])
    found = load_of(memory, {1: places[1]})
    assert (found.batches, found.refused["queue_full"], found.waiting_tokens) == (200, 6, 7)
    opened_again, _ = engines[0].take("b")
    engines[0].write(opened_again, EngineLoad(batches=5), alive=True, ready=True)
    found = load_of(memory, {0: opened_again, 1: places[1]})
    assert (found.batches, found.crashes) == (205, 0)
    engines[0].release(opened_again)
    engines[1].release(places[1])
    assert load_of(memory, {0: engines[0].take("b")[0]}).batches == 0


def test_the_next_engine_process_continues_the_opening_that_was_not_closed():
    memory = SharedMemory(1)
    first = EngineSlots(memory, 0)
    closed, _ = first.take("b")
    again = first.take("b")  # while the first is drained
    assert again[0] != closed
    first.release(closed)
    assert EngineSlots(memory, 0).take("b") == again


def test_the_load_without_an_engine_process_is_empty():
    assert load_of(SharedMemory(1), {}).waiting_requests == 0
