"""Threads that read what a loop needs ahead of it, and write its results behind it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Item = TypeVar('Item')

TIMEOUT = 2.0  # seconds that a loop which ends early waits for the item that is being read


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, and compute the next one in a thread while the caller works on the current one.

    Errors of the items are raised here. Close the iterator (``contextlib.closing``) if the loop may
    end early: then no further item is begun. If the thread waits for something, such as a server,
    it is abandoned after ``TIMEOUT`` seconds, and does not keep the process from exiting.
    """
    iterator, end = iter(items), object()
    requests: SimpleQueue[Future | None] = SimpleQueue()

    def work() -> None:
        while (future := requests.get()) is not None:
            try:
                future.set_result(next(iterator, end))
            except BaseException as error:
                future.set_exception(error)

    def request() -> Future:
        requests.put(future := Future())
        return future

    Thread(target=work, daemon=True).start()  # an executor would wait for it at the exit
    following = request()
    try:
        while (item := following.result()) is not end:
            following = request()
            yield item
    finally:
        requests.put(None)
        wait([following], TIMEOUT)


class BackgroundWriter:
    """Calls of a function in one thread, in their order, within a ``with`` block.

    The end of the block waits for all calls, also after an error or Ctrl-C in the block. An error
    of a call is raised by :meth:`wait`, at the latest at the end of the block. That error, or
    Ctrl-C at the end of the block, drops the calls that have not begun.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._thread = ThreadPoolExecutor(1)
        self._calls: deque[tuple[Future, int]] = deque()

    def __enter__(self) -> 'BackgroundWriter':
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None or issubclass(kind, Exception):
                raise  # otherwise Ctrl-C or the exit that ends the block is raised
        finally:
            self._thread.shutdown(cancel_futures=True)

    def __call__(self, *args: Any, size: int = 1) -> None:
        """Call the function soon. ``size`` counts for the limit of :meth:`wait`."""
        self._calls.append((self._thread.submit(self._function, *args), size))

    def wait(self, calls: int = 0, size: int = 0) -> bool:
        """Wait until at most ``calls`` calls, with a total size of at most ``size``, are left.

        Returns:
            Whether there was a call to wait for.
        """
        before = len(self._calls)
        while self._calls and (len(self._calls) > calls or sum(s for _, s in self._calls) > size):
            self._calls.popleft()[0].result()
        return len(self._calls) < before
