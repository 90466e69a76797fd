"""Signal handlers that raise several times in quick succession.

In the client for threads, an interrupted function starts a background thread that completes it. Here these threads do
not run before the same owner has acquired the lock again: that acquire may not depend on them.

The interpreter runs signal handlers when a Python function begins and when a C function has returned. A profile
function is called at the same points, and raises in place of a handler.
"""

from __future__ import annotations

import _thread
import asyncio
import gc
import itertools
import os
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest
from fake import FakeSidecar
from points import LONG

import locksidecar
from locksidecar import Client, Lock, NotHeld, _core

OURS = os.path.dirname(_core.__file__)

# Before the first instruction of these functions, nothing has begun that could be completed.
ENTRIES = (Lock.__exit__.__code__, Lock.release.__code__)

START_NEW_THREAD = _thread.start_new_thread

# The distances between two interrupts.
GAPS = (1, 2, 3, 5, 9, 16, 30)


class Interrupt(Exception):
    pass


class Handler:
    """Raises at the given points, which are counted from 1."""

    def __init__(self, interrupted: Container[int]) -> None:
        self.interrupted = interrupted
        self.points = 0
        self.interrupts = 0
        self.held_back: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def start_new_thread(self, function: Callable[..., object], args: tuple[Any, ...]) -> int:
        """Takes the place of the C function: its return is a point, its call is not."""
        if function.__name__ == "_stop_waiting":  # the other threads wait for it
            return START_NEW_THREAD(function, args)
        self.held_back.append((function, args))
        return 0

    def run_threads(self) -> None:
        while self.held_back:
            function, args = self.held_back.pop(0)
            function(*args)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code is Handler.start_new_thread.__code__:
            if event != "return":
                return
        elif os.path.dirname(code.co_filename) != OURS or event not in ("call", "c_return") or code in ENTRIES:
            return
        self.points += 1
        if self.points in self.interrupted:
            self.interrupts += 1
            # The interpreter removes a profile function that raises.
            at: FrameType | None = frame
            while at is not None:
                at.f_trace = self._resume
                at = at.f_back
            sys.settrace(self._resume)
            raise Interrupt

    def _resume(self, frame: FrameType, event: str, _: object) -> None:
        sys.settrace(None)
        sys.setprofile(self._profile)

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        gc.disable()  # no finalizers of the clients of other tests
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            sys.settrace(before)
            gc.enable()


def block(lock: Lock) -> None:
    with lock:
        pass


def nested_blocks(lock: Lock) -> None:
    with lock, lock:
        pass


def acquire_and_release(lock: Lock) -> None:
    lock.acquire()
    lock.release()


def release_within_the_block(lock: Lock) -> None:
    with lock:
        lock.release()


OPERATIONS = [
    (Client.lock, block, False),
    (Client.lock, block, True),
    (Client.rlock, block, False),
    (Client.rlock, nested_blocks, False),
    (Client.lock, acquire_and_release, False),
    (Client.rlock, release_within_the_block, False),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a generator's close()
@pytest.mark.parametrize(("kind", "operation", "confirm"), OPERATIONS)
def test_owner_gets_a_new_hold_after_repeated_interrupts(
    sidecar: FakeSidecar,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[..., Lock],
    operation: Callable[[Lock], None],
    confirm: bool,
) -> None:
    def run(interrupted: Container[int]) -> Handler:
        """The operation with interrupts; then the same owner acquires the lock again."""
        lock = kind(client, "n", confirm=confirm)
        handler = Handler(interrupted)
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", handler.start_new_thread)
            try:
                with handler.armed():
                    operation(lock)
            except Interrupt:
                pass
            while lock.locked():  # the interrupts came before the release had found its hold
                lock.release()
            with lock as held:
                held.check()
        assert sidecar.grants[-1][2] == 1
        sidecar.wait_for(lambda: not sidecar.holder("n"))
        handler.run_threads()
        assert all(held.released for held in lock._handles)
        assert len(sidecar.requests("hello")) == 1
        return handler

    for first in itertools.count(1):
        handlers = [run(range(first, sys.maxsize))]
        handlers += [run((first, first + gap)) for gap in (GAPS if LONG else [GAPS[first % len(GAPS)]])]
        if not any(handler.interrupts for handler in handlers):
            break
    assert first > 50


class InterruptingMutex:
    """A handler raises in the thread that locks it."""

    def __enter__(self) -> None:
        raise Interrupt

    def __exit__(self, *_: object) -> None:
        raise AssertionError("it was not locked")


def enter_and_leave(lock: Lock, interrupt: Callable[[], None]) -> None:
    with lock:
        interrupt()


def acquire_a_new_hold(lock: Lock, interrupt: Callable[[], None]) -> None:
    with lock:
        lock.release()
        lock.acquire()  # as a threading.Condition does
        interrupt()


@pytest.mark.parametrize("inner", [enter_and_leave, acquire_a_new_hold])
def test_outer_block_ends_its_own_hold_after_the_end_of_an_inner_block_was_interrupted_repeatedly(
    sidecar: FakeSidecar,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    inner: Callable[[Lock, Callable[[], None]], None],
) -> None:
    """A regression: the outer block ended the hold of the inner block, and its own hold stayed held."""
    lock = client.rlock("n")
    shared = client._shared
    assert shared is not None
    handler = Handler(())
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", handler.start_new_thread)
        with lock:
            with monkeypatch.context() as interrupting, suppress(Interrupt):
                inner(lock, lambda: interrupting.setattr(shared, "mutex", InterruptingMutex()))
            lock.held.check()
        assert not lock.locked()
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    handler.run_threads()
    assert not list(lock._handles)


def test_interrupted_release_is_not_repeated_by_its_holder(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release counts from the moment at which it was interrupted, although a background thread completes it."""
    lock = client.rlock("n")
    shared = client._shared
    assert shared is not None
    handler = Handler(())
    monkeypatch.setattr(_thread, "start_new_thread", handler.start_new_thread)
    with lock as outer:
        lock.acquire()
        with monkeypatch.context() as patch, pytest.raises(Interrupt):
            patch.setattr(shared, "mutex", InterruptingMutex())
            lock.release()
        assert lock.held is outer
        outer.check()
    with pytest.raises(NotHeld):
        lock.release()
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    handler.run_threads()
    client.ping()  # the sidecar has read what was sent before
    assert len(sidecar.requests("release")) == 2


async def test_grant_to_a_task_whose_acquire_was_interrupted_repeatedly_is_released(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await locksidecar.aconnect(sidecar.path) as client:
        shared = client._shared
        assert shared is not None
        lock = client.rlock("n")
        sidecar.silent = True
        acquire = asyncio.create_task(lock.acquire())
        await asyncio.to_thread(sidecar.wait_for, partial(sidecar.requests, "acquire"))
        with monkeypatch.context() as patch:
            patch.setattr(shared, "clock", interrupting_clock)
            acquire.cancel()
            with pytest.raises(Interrupt):
                await acquire
        await asyncio.to_thread(sidecar.answer_all)
        await client.ping()
        await asyncio.to_thread(sidecar.wait_for, lambda: not sidecar.holder("n"))


async def test_task_gets_a_new_hold_after_repeated_interrupts_of_its_release(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await locksidecar.aconnect(sidecar.path) as client:
        shared = client._shared
        assert shared is not None
        lock = client.rlock("n")
        uses: list[Callable[[], object]] = [
            lock.release,
            lambda: lock.held.release(),
            lambda: lock.release(confirm=True),
        ]
        for use in uses:
            await lock.acquire()
            with monkeypatch.context() as patch, pytest.raises(Interrupt):
                patch.setattr(shared, "clock", interrupting_clock)
                use()
            assert not lock.locked()
            async with lock:
                assert sidecar.grants[-1][2] == 1
            await asyncio.to_thread(sidecar.wait_for, lambda: not sidecar.holder("n"))


def interrupting_clock() -> int:
    raise Interrupt
