"""The client for asyncio when the sidecar is killed, restarted or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from functools import partial, partialmethod
from types import SimpleNamespace

import pytest
import pytest_asyncio
import test_restart
from fake import TIMEOUT, FakeSidecar, boottime

import locksidecar
from locksidecar import ClientClosed, LockLost, LockTimeout, Unavailable, aio
from locksidecar._transport import Timeouts, Transport

S = 1_000_000_000


@pytest_asyncio.fixture
async def client(sidecar: FakeSidecar) -> AsyncIterator[aio.Client]:
    async with await locksidecar.aconnect(sidecar.path) as client:
        yield client


async def wait_until(sidecar: FakeSidecar, what: Callable[[], object]) -> None:
    await asyncio.to_thread(sidecar.wait_for, what)


async def wait_free(sidecar: FakeSidecar, name: str) -> None:
    await wait_until(sidecar, lambda: not sidecar.holder(name))


def shared_of(client: aio.Client) -> aio._AsyncSession:
    assert client._shared is not None
    return client._shared


def claimed(sidecar: FakeSidecar, times: int) -> bool:
    return len(sidecar.requests("claim")) == times


def kill(sidecar: FakeSidecar) -> None:
    """Kills the sidecar, which is not restarted until listen()."""
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()


async def join_releasers() -> None:
    await asyncio.to_thread(test_restart.join_releasers)


async def test_body_continues_over_restarts(sidecar: FakeSidecar, client: aio.Client) -> None:
    async with client.lock("n") as held:
        token, session = held.token, sidecar.holder("n")
        for claims in range(1, 4):
            sidecar.restart()
            await wait_until(sidecar, partial(claimed, sidecar, claims))
        held.check()
        assert (held.token, sidecar.holder("n")) == (token, session)
    await wait_free(sidecar, "n")


async def test_loop_reconnects_without_a_call(sidecar: FakeSidecar, client: aio.Client) -> None:
    await client.lock("n").acquire()
    kill(sidecar)
    sidecar.listen()
    await wait_until(sidecar, lambda: sidecar.requests("claim"))


async def test_waiters_keep_their_order_over_restarts(sidecar: FakeSidecar, client: aio.Client) -> None:
    other = await locksidecar.aconnect(sidecar.path)
    await other.lock("n").acquire()
    order: list[int] = []

    async def wait(i: int) -> None:
        async with client.lock("n", timeout=60):
            order.append(i)

    tasks = []
    for i in range(5):
        tasks.append(asyncio.create_task(wait(i)))
        await wait_until(sidecar, lambda: sidecar.waiting("n") == len(tasks))
    for _ in range(3):
        sidecar.restart()
        await wait_until(sidecar, lambda: sidecar.waiting("n") == 5)
    await other.aclose()
    await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_calls_in_flight_are_completed_after_a_restart(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.silent = True
    acquire = asyncio.create_task(client.lock("n").acquire())
    info = asyncio.create_task(client.info("m"))
    force = asyncio.create_task(client.force_release("m"))
    ops = ("acquire", "info", "force_release")
    await wait_until(sidecar, lambda: all(sidecar.requests(op) for op in ops))
    sidecar.silent = False
    sidecar.restart()
    assert await acquire is True
    assert await info is None
    with pytest.raises(Unavailable, match="may have been carried out") as e:
        await force
    assert e.value.may_have_happened


async def test_deadline_cancels_the_body_if_no_sidecar_comes_back(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.lease_ns = S // 10
    with pytest.raises(LockLost, match="expired"):
        async with client.lock("n"):
            kill(sidecar)
            await asyncio.get_running_loop().create_future()
    sidecar.listen()
    await wait_free(sidecar, "n")


async def test_deadline_that_passed_in_a_blocked_loop_is_extended(sidecar: FakeSidecar) -> None:
    """The deadlines passed while the loop was blocked, and the sidecar has extended them."""
    now = boottime()
    async with aio.Client(sidecar.path) as client:
        client._clock = sidecar.clock = lambda: now
        async with client.lock("n") as held:
            assert held._body is not None
            for read in (held._body._on_deadline, held.check):
                sidecar.restart()
                now += 100 * S
                read()
                assert held.remaining == 30
            sidecar.restart()
            now += 100 * S
        await wait_free(sidecar, "n")


async def test_sidecar_that_does_not_answer_blocks_the_loop_once(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locksidecar._transport.GREETING_WAIT", 0.01)
    now = boottime()
    async with aio.Client(sidecar.path) as client:
        client._clock = sidecar.clock = lambda: now
        lock, other = client.lock("n"), client.lock("other")
        await lock.acquire()
        await other.acquire()
        sidecar.silent = True
        sidecar.restart()
        now += 30 * S
        with pytest.raises(LockLost, match="expired"):
            lock.held.check()
        with monkeypatch.context() as m, pytest.raises(LockLost, match="expired"):
            m.setattr("locksidecar._transport.select", SimpleNamespace(poll=object))  # fails if it waits again
            other.held.check()
        sidecar.answer_all()
        await wait_free(sidecar, "n")


async def test_locks_of_a_lost_session_stay_valid_until_their_deadlines(sidecar: FakeSidecar) -> None:
    now = boottime()
    async with aio.Client(sidecar.path) as client:
        client._clock = sidecar.clock = lambda: now
        lock = client.lock("a")
        await lock.acquire()
        sidecar.restart_without_state()
        async with client.lock("b") as later:
            now += 30 * S - 1
            lock.held.check()
            now += 1
            sidecar.extend_leases(now + 30 * S)
            await client.ping()
            later.check()
            with pytest.raises(LockLost, match="expired"):
                lock.release()
            assert sidecar.holder("b")
        await wait_free(sidecar, "b")


async def test_call_fails_if_no_sidecar_comes_back(
    sidecar: FakeSidecar, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await locksidecar.aconnect(sidecar.path)
    await other.lock("n").acquire()
    monkeypatch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, reconnect=0.02))
    monkeypatch.setattr(Timeouts, "for_acquire", lambda _: Timeouts(float("inf")))
    task = asyncio.create_task(client.lock("n").acquire())
    await wait_until(sidecar, lambda: sidecar.waiting("n"))
    kill(sidecar)
    with pytest.raises(Unavailable, match="no socket") as e:
        await task
    assert e.value.may_have_happened
    monkeypatch.undo()
    sidecar.listen()
    assert await client.ping() == "ok"
    assert not sidecar.waiting("n")
    await other.aclose()


async def test_release_without_a_connection_is_delivered_later(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock, other = client.lock("n"), client.lock("other")
    await lock.acquire()
    await other.acquire()
    kill(sidecar)
    lock.release()
    sidecar.listen()
    await wait_free(sidecar, "n")
    assert sidecar.holder("other")


async def test_client_without_holds_and_calls_does_not_reconnect(
    sidecar: FakeSidecar, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = asyncio.Event()
    connect = Transport.connect

    def attempt(transport: Transport) -> bool:
        if transport is shared_of(client).transport:  # a client of a test before may still send a release
            attempts.set()
        return connect(transport)

    monkeypatch.setattr(Transport, "connect", attempt)
    kill(sidecar)
    await attempts.wait()
    assert shared_of(client)._next_attempt is None
    sidecar.listen()
    assert await client.ping() == "ok"


async def test_close_sends_bye(sidecar: FakeSidecar) -> None:
    client = await aio.connect(sidecar.path)
    await client.lock("n").acquire()
    await client.aclose()
    assert not sidecar.holder("n")
    assert len(sidecar.requests("bye")) == 1
    sidecar.restart()
    client = await aio.connect(sidecar.path)
    await client.lock("n").acquire()
    sidecar.restart()
    await client.aclose()
    assert not sidecar.holder("n")
    await join_releasers()


async def test_close_without_a_connection_is_delivered_later(sidecar: FakeSidecar) -> None:
    client = await aio.connect(sidecar.path)
    with pytest.raises(LockLost, match="closed"):
        async with client.lock("n") as held:
            kill(sidecar)
            await client.aclose()
            assert held.lost == "closed"
    with pytest.raises(ClientClosed):
        await client.ping()
    sidecar.listen()
    await wait_free(sidecar, "n")
    await join_releasers()


@pytest.mark.parametrize("noticed", [True, False])
def test_client_works_in_a_new_loop_after_a_disconnect(sidecar: FakeSidecar, noticed: bool) -> None:
    client = aio.Client(sidecar.path)

    async def hold() -> aio.Held:
        lock = client.lock("m")
        await lock.acquire()
        await client.lock("n").acquire()
        if noticed:
            kill(sidecar)
        return lock.held

    held = asyncio.run(hold())
    if not noticed:
        kill(sidecar)
    held.release()

    async def again() -> None:
        sidecar.listen()
        async with client.lock("n", timeout=TIMEOUT):
            pass
        await client.aclose()
        await join_releasers()

    asyncio.run(again())


async def test_tasks_exclude_each_other_over_many_disconnects(sidecar: FakeSidecar, client: aio.Client) -> None:
    inside = 0
    tokens: list[int] = []

    async def work(seed: int) -> None:
        nonlocal inside
        rng = random.Random(seed)
        for i in itertools.count():
            if i >= 20 and len(sidecar.requests("claim")) > 3:
                break
            if rng.random() < 0.2:
                assert await client.ping() == "ok"
            timeout = 0.001 if rng.random() < 0.2 else None
            with contextlib.suppress(LockTimeout):
                async with client.lock("n", timeout=timeout) as held:
                    tokens.append(held.token)
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    held.check()
                    inside -= 1

    def has_received(wanted: int) -> bool:
        return len(sidecar.received) >= wanted

    async def disconnect() -> None:
        rng = random.Random(0)
        while True:
            wanted = len(sidecar.received) + rng.randrange(60)
            await wait_until(sidecar, partial(has_received, wanted))
            if rng.random() < 0.3:
                kill(sidecar)
                sidecar.listen()
            else:
                sidecar.restart()

    disconnecting = asyncio.create_task(disconnect())
    await asyncio.wait_for(asyncio.gather(*[work(seed) for seed in range(10)]), TIMEOUT)
    disconnecting.cancel()
    with sidecar._changed:  # a thread may still wait for more requests
        sidecar.received += [(0, {"op": ""})] * 100
        sidecar._changed.notify_all()
    with contextlib.suppress(asyncio.CancelledError):
        await disconnecting
    assert tokens == sorted(set(tokens))
    assert await client.ping() == "ok"
    await wait_free(sidecar, "n")
