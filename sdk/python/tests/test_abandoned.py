"""Abandoned acquires: their grants are released, and their owners' next acquires are sent after that."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from fake import TIMEOUT, FakeSidecar
from session_harness import S, SessionHarness
from test_restart import join_releasers

import locksidecar
from locksidecar import Client, Deadlock, aio
from locksidecar._calls import Options, info_call


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness()


def requests(harness: SessionHarness) -> list[tuple[str, str]]:
    return [(m["op"], str(m.get("name", m.get("hold", "")))) for m in harness.sent()]


# --- The core ---


def test_next_acquire_is_sent_after_the_release_of_a_grant_that_crossed_the_cancel(harness: SessionHarness) -> None:
    first = harness.acquire("n")
    harness.abandon(first)
    second = harness.acquire("n")
    assert requests(harness) == [("acquire", "n"), ("cancel", "")]
    harness.deliver(id=first.id, token=1, hold=7, count=1, deadline_ns=30 * S)
    assert requests(harness) == [("release", "7"), ("acquire", "n")]
    assert not harness.session.live_holds
    entry = harness.grant(second, hold=8)
    entry.check(0)
    assert not harness.session.unanswered_cancels


def test_next_acquire_is_sent_after_the_abandoned_one_is_canceled(harness: SessionHarness) -> None:
    first = harness.acquire("n")
    harness.abandon(first)
    harness.acquire("n")
    harness.sent()
    harness.deliver(id=first.id, err={"code": "canceled", "msg": "canceled"})
    assert requests(harness) == [("acquire", "n")]


def test_abandoned_acquire_defers_the_owners_acquires_of_all_locks(harness: SessionHarness) -> None:
    """Otherwise the sidecar would count the abandoned grant when it looks for wait cycles."""
    first = harness.acquire("n")
    harness.abandon(first)
    harness.acquire("m")
    harness.acquire("m", owner=2)
    harness.submit(info_call("m"))
    assert requests(harness) == [("acquire", "n"), ("cancel", ""), ("acquire", "m"), ("info", "m")]
    harness.deliver(id=first.id, err={"code": "canceled", "msg": "canceled"})
    assert requests(harness) == [("acquire", "m")]


def test_abandoned_acquire_of_an_anonymous_owner_defers_no_other(harness: SessionHarness) -> None:
    first = harness.acquire("n", owner=0)
    harness.abandon(first)
    harness.acquire("n", owner=0)
    assert requests(harness) == [("acquire", "n"), ("cancel", ""), ("acquire", "n")]
    harness.deliver(id=first.id, token=1, hold=7, count=1, deadline_ns=30 * S)
    assert requests(harness) == [("release", "7")]


def test_deferred_acquire_is_sent_with_the_rest_of_its_timeout(harness: SessionHarness) -> None:
    first = harness.acquire("n")
    harness.abandon(first)
    harness.acquire("n", Options(timeout=2))
    harness.sent()
    harness.now = S // 2
    harness.deliver(id=first.id, err={"code": "canceled", "msg": "canceled"})
    (again,) = harness.sent()
    assert again["wait_ms"] == 1500


def test_acquire_abandoned_while_deferred_is_never_sent(harness: SessionHarness) -> None:
    first = harness.acquire("n")
    harness.abandon(first)
    second = harness.acquire("n")
    harness.abandon(second)
    harness.sent()
    harness.deliver(id=first.id, err={"code": "canceled", "msg": "canceled"})
    assert harness.sent() == []
    assert second.done
    assert not harness.session._deferred


def test_deferred_acquire_is_sent_on_the_next_connection(harness: SessionHarness) -> None:
    """The grant to the abandoned acquire is not claimed, so the sidecar releases it."""
    first = harness.acquire("n")
    harness.abandon(first)
    second = harness.acquire("n")
    harness.sent()
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    (claim,) = harness.sent()
    assert claim["holds"] == []
    harness.deliver(id=claim["id"])
    assert requests(harness) == [("acquire", "n")]
    harness.grant(second)


def test_failed_session_defers_no_acquires(harness: SessionHarness) -> None:
    harness.abandon(harness.acquire("n"))
    harness.acquire("n")
    harness.session.fail("It failed.")
    assert not harness.session.unanswered_cancels
    assert not harness.session._deferred


def test_given_up_acquire_is_abandoned_before_the_next_request(harness: SessionHarness) -> None:
    first = harness.acquire("n")
    harness.session.given_up += [first]
    second = harness.acquire("n")
    assert requests(harness) == [("acquire", "n"), ("cancel", "")]
    harness.deliver(id=first.id, token=1, hold=7, count=1, deadline_ns=30 * S)
    assert requests(harness) == [("release", "7"), ("acquire", "n")]
    harness.grant(second, hold=8).check(0)


def test_given_up_acquire_is_abandoned_before_its_grant_is_processed(harness: SessionHarness) -> None:
    first = harness.acquire("n")
    harness.session.given_up += [first]
    harness.deliver(id=first.id, token=1, hold=7, count=1, deadline_ns=30 * S)
    assert requests(harness) == [("acquire", "n"), ("cancel", ""), ("release", "7")]
    assert not harness.session.live_holds
    assert not harness.session.given_up


def test_given_up_entry_is_released_once_before_the_next_request(harness: SessionHarness) -> None:
    entry = harness.acquired(hold=7)
    harness.session.given_up += [entry, entry]
    harness.acquire("n7")
    assert requests(harness) == [("release", "7"), ("acquire", "n7")]
    assert entry.released
    assert not harness.session.given_up


# --- Threads ---


def interrupt_acquire(sidecar: FakeSidecar, client: Client, interrupted: threading.Event) -> None:
    """Sends SIGINT to the main thread while it waits for an acquire, until `interrupted` is set."""
    sidecar.wait_for(lambda: sidecar.requests("acquire"))
    while not (client._shared is not None and client._shared._polling):
        os.sched_yield()
    while not interrupted.wait(0):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if interrupted.wait(5):
            return


@pytest.mark.parametrize("kind", [Client.lock, Client.rlock])
def test_acquire_that_an_interrupted_thread_repeats_gets_a_new_hold(
    sidecar: FakeSidecar, client: Client, kind: Callable[..., locksidecar.Lock]
) -> None:
    sidecar.silent = True
    interrupted, finished = threading.Event(), threading.Event()

    def interrupt() -> None:
        interrupt_acquire(sidecar, client, interrupted)
        sidecar.wait_for(lambda: sidecar.requests("cancel"))
        shared = client._shared
        assert shared is not None
        while not (len(shared._waiting) > 1 or len(sidecar.requests("acquire")) > 1 or finished.is_set()):
            os.sched_yield()
        sidecar.answer_all()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        kind(client, "n").acquire()
    interrupted.set()
    try:
        with kind(client, "n", lease=5) as held:
            held.check()
    finally:
        finished.set()
        thread.join()
    assert [count for _, _, count in sidecar.grants] == [1, 1]
    assert sidecar.requests("release")[0]["hold"] == sidecar.grants[0][1]
    sidecar.wait_for(lambda: not sidecar.holder("n"))


def test_releaser_and_close_wait_for_the_same_answer(sidecar: FakeSidecar) -> None:
    """A regression: both threads waited as one waiter and polled the socket, and poll() refused one of them."""
    client = locksidecar.connect(sidecar.path)
    shared = client._shared
    assert shared is not None
    sidecar.silent = True
    interrupted = threading.Event()
    thread = threading.Thread(target=interrupt_acquire, args=(sidecar, client, interrupted))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.lock("n").acquire()
    interrupted.set()
    thread.join()
    while not shared._waiting:  # the releaser waits for the answer
        os.sched_yield()

    def answer() -> None:
        sidecar.wait_for(lambda: sidecar.requests("bye"))
        end = time.monotonic() + TIMEOUT
        while len(shared._waiting) < 2 and time.monotonic() < end:
            os.sched_yield()
        sidecar.answer_all()

    answering = threading.Thread(target=answer)
    answering.start()
    client.close()
    answering.join()
    join_releasers()
    sidecar.wait_for(lambda: not sidecar.connections())
    assert not sidecar.holder("n")


def test_repeated_interrupts_of_an_acquire_leave_no_lock_held(sidecar: FakeSidecar, client: Client) -> None:
    """Another thread holds the mutex, so the main thread is interrupted each time it waits for the mutex."""

    class Interrupt(Exception):
        pass

    sidecar.silent = True
    shared = client._shared
    assert shared is not None
    interrupted: list[int] = []
    acquire_ended = threading.Event()
    armed = True

    def handler(*_: object) -> None:
        interrupted.append(1)
        if armed:
            raise Interrupt

    def interrupt() -> None:
        sidecar.wait_for(lambda: sidecar.requests("acquire"))
        while not shared._polling:
            os.sched_yield()
        with shared.mutex:
            for n in range(1, 30):
                while len(interrupted) < n and not acquire_ended.is_set():
                    # A signal that arrives just before the main thread waits is handled together with the next one.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                    acquire_ended.wait(0.001)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        try:
            client.lock("n").acquire()
        except Interrupt:
            armed = False
        acquire_ended.set()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(interrupted) > 1
    sidecar.wait_for(lambda: sidecar.requests("cancel"))
    sidecar.answer_all()
    sidecar.wait_for(lambda: sidecar.requests("release"))  # without another use of the client
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert shared._leader is None or shared._leader.registered
    assert client.ping() == "ok"


# --- Tasks ---


@pytest.mark.parametrize("kind", [aio.Client.lock, aio.Client.rlock])
async def test_acquire_that_a_cancelled_task_repeats_gets_a_new_hold(
    sidecar: FakeSidecar, kind: Callable[..., aio.Lock]
) -> None:
    async with await locksidecar.aconnect(sidecar.path) as client:
        sidecar.silent = True
        again = asyncio.Event()

        async def work() -> None:
            with pytest.raises(asyncio.CancelledError):
                await kind(client, "n").acquire()
            again.set()
            async with kind(client, "n", lease=5) as held:
                held.check()

        task = asyncio.create_task(work())
        await asyncio.to_thread(sidecar.wait_for, partial(sidecar.requests, "acquire"))
        task.cancel()
        await again.wait()
        await asyncio.to_thread(sidecar.wait_for, partial(sidecar.requests, "cancel"))
        sidecar.answer_all()
        try:
            await asyncio.wait_for(task, TIMEOUT)
        except Deadlock as e:
            pytest.fail(str(e))
        assert [count for _, _, count in sidecar.grants] == [1, 1]
        await asyncio.to_thread(sidecar.wait_for, lambda: not sidecar.holder("n"))
