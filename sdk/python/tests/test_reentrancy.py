"""A signal handler or a __del__ that uses a client, at every point at which the interpreter runs handlers.

As in test_interrupts.py, a profile function stands for the handler. Each test is one process. SIGALRM ends it if it
hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import pytest
from fake import FakeSidecar
from points import points

import locksidecar
from locksidecar import Client, ClientClosed, Deadlock, Held, LockLost, Unconfirmed, _core, aio

OURS = os.path.dirname(_core.__file__)
HANG = 60  # seconds; only a process that hangs runs that long


class Handler:
    """Calls a function at one point, once."""

    def __init__(self, point: int, function: Callable[[], object]) -> None:
        self.left = point
        self.function = function

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and os.path.dirname(frame.f_code.co_filename) == OURS:
            self.left -= 1
            if self.left == 0:
                self.function()


def check(client: Client, other: Held) -> None:
    other.check()


def release(client: Client, other: Held) -> None:
    other.release()


def release_confirmed(client: Client, other: Held) -> None:
    with contextlib.suppress(Unconfirmed):  # inside of a change of the session, a frame cannot wait
        other.release(confirm=True)


def acquire(client: Client, other: Held) -> None:
    with client.lock("third"):
        pass


def acquire_with_timeout(client: Client, other: Held) -> None:
    lock = client.lock("third")
    assert lock.acquire(timeout=HANG)
    lock.release()


def acquire_busy(client: Client, other: Held) -> None:
    assert client.lock("busy").acquire(timeout=0.002) is False


def acquire_own(client: Client, other: Held) -> None:
    """The lock that the interrupted frame acquires, holds or releases. A wait for it would have no end."""
    with contextlib.suppress(Deadlock), client.lock("n"):
        pass


class Lender:
    """A thread that holds a lock until a handler wants it. It cannot release it while the handler is in the way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lock = client.lock("lent", timeout=HANG)
        self.holds, self.wanted = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._lend, daemon=True)
        self.thread.start()
        assert self.holds.wait(HANG)

    def _lend(self) -> None:
        with self.lock:
            self.holds.set()
            assert self.wanted.wait(HANG)

    def acquire(self) -> None:
        self.wanted.set()
        with contextlib.suppress(Deadlock), self.client.lock("lent"):
            pass


class Owner:
    """Garbage that releases a lock when it is collected."""

    def __init__(self, held: Held | aio.Held) -> None:
        self.held = held
        self.cycle = self

    def __del__(self) -> None:
        self.held.release()


def collect(client: Client, other: Held) -> None:
    Owner(other)
    gc.collect()


def acquire_at_each_point(path: str, function: Callable[[Client, Held], None]) -> None:
    with locksidecar.connect(path) as client, locksidecar.connect(path) as elsewhere, elsewhere.lock("busy"):
        for point in itertools.count(1):
            with contextlib.ExitStack() as stack:
                # It is free again: an earlier handler has released it.
                lock = client.lock("other", timeout=10)
                lock.acquire()
                other = lock.held
                handler = Handler(point, lambda other=other: function(client, other))  # type: ignore[misc]
                stack.callback(sys.setprofile, None)
                sys.setprofile(handler)
                with client.lock("n") as held:
                    held.check()
                sys.setprofile(None)
                if not other.released:
                    other.release()
            if handler.left > 0:
                return


def lend_at_each_point(path: str) -> None:
    with locksidecar.connect(path) as client:
        for point in itertools.count(1):
            lender = Lender(client)
            handler = Handler(point, lender.acquire)
            try:
                sys.setprofile(handler)
                with client.lock("n") as held:
                    held.check()
            finally:
                sys.setprofile(None)
            lender.wanted.set()
            lender.thread.join()
            if handler.left > 0:
                return


def close_at_each_point(path: str) -> None:
    with locksidecar.connect(path) as elsewhere:
        for point in itertools.count(1):
            client = Client(path)
            handler = Handler(point, client.close)
            with contextlib.suppress(ClientClosed, LockLost):
                try:
                    sys.setprofile(handler)
                    with client.lock("n", timeout=HANG) as held:
                        held.check()
                finally:
                    sys.setprofile(None)
            if handler.left > 0:
                client.close()
                return
            with pytest.raises(ClientClosed):
                client.ping()
            with elsewhere.lock("n"):
                pass


def in_child(function: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HANG)
            gc.freeze()  # a collection examines the objects of the test only
            function()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    "function",
    [check, release, release_confirmed, acquire, acquire_with_timeout, acquire_busy, acquire_own, collect],
)
def test_handler_that_uses_the_client(sidecar: FakeSidecar, function: Callable[[Client, Held], None]) -> None:
    in_child(lambda: acquire_at_each_point(sidecar.path, function))


def test_handler_that_wants_the_lock_of_another_thread(sidecar: FakeSidecar) -> None:
    in_child(lambda: lend_at_each_point(sidecar.path))


def test_handler_that_closes_the_client(sidecar: FakeSidecar) -> None:
    in_child(lambda: close_at_each_point(sidecar.path))


# --- asyncio ---


class Tasks:
    """What the upper frame may use, and what it starts."""

    def __init__(self, client: aio.Client, other: aio.Held) -> None:
        self.client = client
        self.other = other
        self.started: list[asyncio.Task[Any]] = []
        main = asyncio.current_task()
        assert main is not None
        self.main = main
        self.waiting = asyncio.create_task(client.lock("busy").acquire())
        # It waits, and no task runs it: it is closed like a coroutine that is garbage.
        self.suspended: Coroutine[Any, Any, bool] = client.lock("busy").acquire()
        self.suspended.send(None)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.started.append(asyncio.create_task(coroutine))

    async def finish(self) -> None:
        for task in self.started:
            await task
        self.suspended.close()
        self.waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.waiting
        if not self.other.released:
            self.other.release()


def aio_read(tasks: Tasks) -> None:
    tasks.other.check()
    assert tasks.other.lost is None
    assert tasks.other.remaining > 0


def aio_release(tasks: Tasks) -> None:
    tasks.other.release()
    assert tasks.other.released


def aio_release_confirmed(tasks: Tasks) -> None:
    tasks.start(tasks.other.release(confirm=True))
    assert tasks.other.released


def aio_acquire(tasks: Tasks) -> None:
    async def acquire() -> None:
        async with tasks.client.lock("third", timeout=HANG):
            pass

    tasks.start(acquire())


def aio_cancel(tasks: Tasks) -> None:
    tasks.waiting.cancel()


def aio_cancel_main(tasks: Tasks) -> None:
    """As asyncio.run() does in its handler of SIGINT."""
    tasks.main.cancel()


def aio_close_coroutine(tasks: Tasks) -> None:
    tasks.suspended.close()


def aio_collect(tasks: Tasks) -> None:
    Owner(tasks.other)
    gc.collect()


UPPER_FRAMES = (
    aio_read,
    aio_release,
    aio_release_confirmed,
    aio_acquire,
    aio_cancel,
    aio_cancel_main,
    aio_close_coroutine,
    aio_collect,
)


async def hold_and_release(client: aio.Client, elsewhere: aio.Client) -> None:
    async with client.lock("n", timeout=HANG) as held:
        held.check()
    await client.ping()


async def hold_and_lose(client: aio.Client, elsewhere: aio.Client) -> None:
    with contextlib.suppress(LockLost):
        async with client.lock("n", timeout=HANG) as held:
            await elsewhere.force_release("n")
            held.check()
            await asyncio.sleep(HANG)  # the loss cancels it


async def use_at_each_point(
    path: str,
    body: Callable[[aio.Client, aio.Client], Coroutine[Any, Any, None]],
    function: Callable[[Tasks], None],
    eager: bool,
) -> None:
    loop = asyncio.get_running_loop()
    if eager:
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    async with aio.Client(path) as client, aio.Client(path) as elsewhere, elsewhere.lock("busy"):
        for point in points(4, [f.__name__ for f in UPPER_FRAMES].index(function.__name__)):
            # It is free again: an earlier upper frame has released it.
            lock = client.lock("other", timeout=HANG)
            await lock.acquire()
            tasks = Tasks(client, lock.held)
            await asyncio.sleep(0)
            handler = Handler(point, functools.partial(function, tasks))
            try:
                sys.setprofile(handler)
                await body(client, elsewhere)
            except asyncio.CancelledError:
                if sys.version_info >= (3, 11):
                    tasks.main.uncancel()
            finally:
                sys.setprofile(None)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # a task that was cancelled after its last await
            if sys.version_info >= (3, 11):
                while tasks.main.cancelling():
                    tasks.main.uncancel()
            await tasks.finish()
            assert not errors, (point, errors)
            if handler.left > 0:
                break
        for name in ("n", "other", "third"):
            async with elsewhere.lock(name, timeout=HANG):
                pass


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("body", [hold_and_release, hold_and_lose])
@pytest.mark.parametrize("function", UPPER_FRAMES)
def test_upper_frame_that_uses_the_asyncio_client(
    sidecar: FakeSidecar,
    function: Callable[[Tasks], None],
    body: Callable[[aio.Client, aio.Client], Coroutine[Any, Any, None]],
    eager: bool,
) -> None:
    if eager and sys.version_info < (3, 12):
        pytest.skip("this Python has no eager tasks")
    sidecar.lease_ns = 3600 * 10**9  # no deadline passes, however slow this machine is
    in_child(lambda: asyncio.run(use_at_each_point(sidecar.path, body, function, eager)))
