import mmap
import random

import numpy as np
import pytest

from pipework.errors import NotReadyError
from pipework.serve.request.statistics import EngineLoad
from pipework.serve.workers.shared_memory import (
    SLOTS,
    Arena,
    RequestLayout,
    SharedMemory,
    VersionSlots,
    read_logits,
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


def test_a_version_keeps_its_slot_and_counters_in_the_next_engine_process():
    memory = SharedMemory(2)
    first = VersionSlots(memory)
    first.take("a")
    slot, opening = first.take("b")
    load = EngineLoad(waiting_requests=5, batches=10, compute_s=2.5, refused={"queue_full": 3})
    first.write(slot, load, alive=True, ready=True)
    memory.statistics_PSV[1, slot, 0] = 4
    second = VersionSlots(memory)
    assert second.take("b") == (slot, opening)
    second.release_others()
    assert memory.keys_S.tolist().count(0) == SLOTS - 1
    second.write(slot, EngineLoad(batches=1, compute_s=0.5), alive=True, ready=True)
    found = memory.load(slot)
    assert (found.waiting_requests, found.batches, found.compute_s) == (0, 11, 3.0)
    assert (found.crashes, found.refused["queue_full"]) == (1, 3)
    assert memory.statistics_PSV[:, slot, 0].sum() == 4


def test_another_version_in_a_slot_starts_at_0():
    memory = SharedMemory(1)
    slots = VersionSlots(memory)
    taken = [slots.take(str(number))[0] for number in range(SLOTS)]
    with pytest.raises(NotReadyError, match="128 versions are open"):
        slots.take("one more")
    slots.write(taken[5], EngineLoad(batches=9), alive=True, ready=True)
    memory.refusals_PSR[0, taken[5], 0] = 2
    slots.release(taken[5])
    assert slots.take("one more") == (taken[5], SLOTS + 1)
    assert memory.load(taken[5]) == EngineLoad(
        engines=0, refused=dict.fromkeys(("queue_full", "not_ready", "deadline", "cancelled"), 0)
    )


def test_refusals_are_those_of_the_engine_and_of_all_front_processes():
    memory = SharedMemory(2)
    slots = VersionSlots(memory)
    slot, _ = slots.take("a")
    slots.write(slot, EngineLoad(refused={"queue_full": 1}), alive=True, ready=True)
    memory.refusals_PSR[:, slot, 0] = 2, 3
    assert memory.load(slot).refused["queue_full"] == 6
