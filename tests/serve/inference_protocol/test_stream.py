import asyncio

import pytest

from pipework.serve.inference_protocol.stream import MAX_PENDING, in_order


async def numbers(count, read):
    for number in range(count):
        read.append(number)
        yield number


def test_answers_are_in_order_and_computed_concurrently():
    done = []

    async def answer(number):
        await asyncio.sleep(0.05 if number == 0 else 0)
        done.append(number)
        return number

    async def ask():
        return [one async for one in in_order(numbers(5, []), answer)]

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
    assert done == [1, 2, 3, 4, 0]


def test_the_number_of_concurrent_requests_is_limited():
    read = []

    async def ask():
        never = asyncio.Event()
        answers = in_order(numbers(1000, read), lambda _: never.wait())
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.05)
        first.cancel()

    asyncio.run(ask())
    assert MAX_PENDING <= len(read) <= MAX_PENDING + 2


def test_an_error_of_the_stream_is_raised_after_earlier_answers():
    async def requests():
        yield 1
        yield 2
        message = "broken"
        raise ValueError(message)

    async def answer(number):
        await asyncio.sleep(0.01)
        return number

    async def ask():
        answers = in_order(requests(), answer)
        assert [await anext(answers), await anext(answers)] == [1, 2]
        with pytest.raises(ValueError, match="broken"):
            await anext(answers)

    asyncio.run(ask())


@pytest.mark.parametrize("count", [3, 2 * MAX_PENDING])
def test_a_cancelled_stream_cancels_its_requests(count):
    cancelled, read = [], []

    async def answer(number):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def ask():
        answers = in_order(numbers(count, read), answer)
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait((first,))
        for _ in range(3):
            await asyncio.sleep(0)
        assert sorted(cancelled) == read
        assert len(read) == min(count, MAX_PENDING + 2)

    asyncio.run(ask())
