"""A thread works one item ahead of a loop, and another one writes behind it."""

import threading
from contextlib import closing

import pytest

from xcit_mm.base import threads
from xcit_mm.base.threads import BackgroundWriter, prefetch

LONG = 60  # seconds after which a thread that should have come is missed


def test_the_next_item_is_computed_while_the_caller_works_and_no_further_one():
    begun = [threading.Event() for _ in range(5)]

    def items():
        for number, event in enumerate(begun):
            event.set()
            yield number

    for number in prefetch(items()):
        assert all(event.wait(LONG) for event in begun[: number + 2])
        assert not any(event.is_set() for event in begun[number + 2 :])
    assert number == 4


def test_an_error_is_raised_after_the_items_before_it():
    def items():
        yield from (1, 2)
        raise ValueError('damaged')

    seen = []
    with pytest.raises(ValueError, match='damaged'):
        for item in prefetch(items()):
            seen.append(item)
    assert seen == [1, 2]


def test_a_loop_that_ends_early_does_not_wait_for_an_item_that_never_comes(monkeypatch):
    monkeypatch.setattr(threads, 'TIMEOUT', 0.01)
    begun, is_left = threading.Event(), threading.Event()

    def items():
        yield 1
        begun.set()
        is_left.wait()
        yield 2

    with closing(prefetch(items())) as read:
        assert next(read) == 1 and begun.wait(LONG)
    is_left.set()


def test_calls_are_made_in_their_order_and_wait_leaves_the_last_ones():
    done, go_on = [], threading.Event()

    def call(number: int) -> None:
        assert number < 2 or go_on.wait(LONG)
        done.append(number)

    with BackgroundWriter(call) as behind:
        for number in range(4):
            behind(number, size=10)
        assert behind.wait(calls=2, size=100) and done == [0, 1]
        assert not behind.wait(calls=2, size=20)
        go_on.set()
        assert behind.wait(calls=4, size=15) and done[:3] == [0, 1, 2]
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize('error', [ZeroDivisionError, KeyboardInterrupt])
def test_what_was_begun_is_finished_before_an_error_leaves_the_block(error):
    done = []
    with pytest.raises(error), BackgroundWriter(done.append) as behind:
        for number in range(3):
            behind(number)
        raise error
    assert done == [0, 1, 2]
