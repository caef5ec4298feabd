import threading

import pytest

from pipework.data.examples import Example
from pipework.errors import InputError, TooLargeError
from pipework.scoring.predictions import Value
from pipework.serve.client.stream import REQUESTS, TEXTS, answer_all


class Asked:
    """Answers each text with its number; the first request waits for the others on the way."""

    def __init__(self, wrong=None):
        self.wrong, self.together, self.sizes = wrong, threading.Barrier(REQUESTS), []

    def predict_examples(self, examples):
        self.sizes.append(len(examples))
        if self.wrong is None and int(examples[0].text) < REQUESTS * TEXTS:
            self.together.wait(20)
        if self.wrong in {example.text for example in examples}:
            message = "input 3: too long"
            raise TooLargeError(message, "shorten it")
        return [Value(score=float(example.text)) for example in examples]


class Heard:
    """Counts what it is told."""

    done = 0

    def advance(self, count, figures=None):
        assert figures is None
        self.done += count


def numbered(count):
    return (Example(text=str(number)) for number in range(count))


def test_answers_come_in_order_while_several_requests_are_on_the_way():
    client, heard = Asked(), Heard()
    found = [*answer_all(client, numbered(200), heard)]
    assert [(one.text, answer.score) for one, answer in found] == [(str(n), n) for n in range(200)]
    assert heard.done == 200
    assert sorted(client.sizes) == [200 % TEXTS, *[TEXTS] * (200 // TEXTS)]


def test_no_more_is_read_than_is_on_the_way():
    read = []

    def endless():
        for example in numbered(10**9):
            read.append(example)
            yield example

    answers = answer_all(Asked(wrong="none"), endless(), Heard())
    next(answers)
    assert len(read) <= TEXTS * (REQUESTS + 2)
    answers.close()


def test_what_is_refused_says_between_which_inputs_it_is():
    answers = answer_all(Asked(wrong="40"), numbered(50), Heard())
    with pytest.raises(TooLargeError, match=r"^of inputs 33 to 50: input 3: too long$") as raised:
        list(answers)
    assert isinstance(raised.value, InputError)
    assert raised.value.hint == "shorten it"
