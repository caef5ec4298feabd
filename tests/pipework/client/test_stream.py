import threading

import pytest

from pipework.client.client import REQUESTS, TEXTS, predict_all
from pipework.data.examples import Example
from pipework.errors import InputError, TooLargeError
from pipework.tasks.predictions import RegressionValue


class NumberedClient:
    """Returns the number of each text; the first request waits for the concurrent ones."""

    def __init__(self, wrong=None):
        self.wrong, self.together, self.sizes = wrong, threading.Barrier(REQUESTS), []

    def predict_examples(self, examples):
        self.sizes.append(len(examples))
        if self.wrong is None and int(examples[0].text) < REQUESTS * TEXTS:
            self.together.wait(20)
        if self.wrong in {example.text for example in examples}:
            message = "input 3: too long"
            raise TooLargeError(message, "shorten it")
        return [RegressionValue(score=float(example.text)) for example in examples]


class Counter:
    """Counts finished inputs."""

    done = 0

    def advance(self, count, figures=None):
        assert figures is None
        self.done += count


def numbered(count):
    return (Example(text=str(number)) for number in range(count))


def test_predictions_are_in_order_with_concurrent_requests():
    client, heard = NumberedClient(), Counter()
    found = [*predict_all(client, numbered(200), heard)]
    assert [(one.text, answer.score) for one, answer in found] == [(str(n), n) for n in range(200)]
    assert heard.done == 200
    assert sorted(client.sizes) == [200 % TEXTS, *[TEXTS] * (200 // TEXTS)]


def test_inputs_are_read_only_when_they_are_sent():
    read = []

    def endless():
        for example in numbered(10**9):
            read.append(example)
            yield example

    answers = predict_all(NumberedClient(wrong="none"), endless(), Counter())
    next(answers)
    assert len(read) <= TEXTS * (REQUESTS + 2)
    answers.close()


def test_an_input_error_names_the_range_of_inputs():
    answers = predict_all(NumberedClient(wrong="40"), numbered(50), Counter())
    with pytest.raises(TooLargeError, match=r"^in inputs 33 to 50: input 3: too long$") as raised:
        list(answers)
    assert isinstance(raised.value, InputError)
    assert raised.value.hint == "shorten it"
