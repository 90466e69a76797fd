"""The client for asyncio against a fake sidecar on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from fake import TIMEOUT, FakeSidecar, boottime

import locksidecar
from locksidecar import (
    ClientClosed,
    Deadlock,
    LockLost,
    LockTimeout,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unsupported,
    _transport,
    aio,
)
from locksidecar._handles import Handles

S = 1_000_000_000


@pytest_asyncio.fixture
async def client(sidecar: FakeSidecar) -> AsyncIterator[aio.Client]:
    async with await locksidecar.aconnect(sidecar.path) as client:
        yield client


@pytest_asyncio.fixture
async def other(sidecar: FakeSidecar) -> AsyncIterator[aio.Client]:
    async with aio.Client(sidecar.path) as client:
        yield client


async def wait_until(sidecar: FakeSidecar, what: Callable[[], object]) -> None:
    await asyncio.to_thread(sidecar.wait_for, what)


async def wait_free(sidecar: FakeSidecar, name: str) -> None:
    await wait_until(sidecar, lambda: not sidecar.holder(name))


async def wait_forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_async_with_holds_and_releases(sidecar: FakeSidecar, client: aio.Client) -> None:
    async with client.lock("n", timeout=2) as held:
        assert sidecar.holder("n")
        assert held.token >= 1_700_000_000_000_000
        assert held.lost is None
        assert 0 < held.remaining <= 30
        assert 0 < held.deadline * S - boottime() <= 30 * S
        held.check()
    await wait_free(sidecar, "n")
    assert held.released
    with pytest.raises(NotHeld):
        held.check()


async def test_acquire_and_release(sidecar: FakeSidecar, client: aio.Client, other: aio.Client) -> None:
    lock = client.lock("n", timeout=0.01)
    assert await lock.acquire() is True
    assert lock.locked()
    assert lock.token == lock.held.token
    assert await other.lock("n").acquire(blocking=False) is False
    assert await other.lock("n").acquire(timeout=0.01) is False
    lock.release()
    with pytest.raises(NotHeld, match="never acquired"):
        lock.release()
    with pytest.raises(ValueError, match="non-blocking"):
        await lock.acquire(blocking=False, timeout=1)
    assert await lock.acquire(timeout=-1)
    assert "wait_ms" not in sidecar.requests("acquire")[-1]


async def test_fair_is_sent(sidecar: FakeSidecar, client: aio.Client) -> None:
    async with client.lock("n", fair=True), client.rlock("m", fair=True), client.lock("o"):
        pass
    assert [request.get("fair", False) for request in sidecar.requests("acquire")] == [True, True, False]


async def test_timeout_raises_and_the_body_does_not_run(client: aio.Client, other: aio.Client) -> None:
    async with other.lock("n"):
        with pytest.raises(LockTimeout):
            async with client.lock("n", timeout=0.01):
                pytest.fail("the body ran without the lock")


async def test_tasks_exclude_each_other(sidecar: FakeSidecar, client: aio.Client) -> None:
    inside = 0
    most = 0

    async def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            async with client.lock("n"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*[work() for _ in range(20)])
    assert most == 1
    assert len(sidecar.requests("hello")) == 1


async def test_tasks_connect_once(sidecar: FakeSidecar, other: aio.Client) -> None:
    await asyncio.gather(*[other.ping() for _ in range(20)])
    assert len(sidecar.requests("hello")) == 1


async def test_rlock_is_held_by_its_task(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.rlock("n", timeout=0)

    async def child() -> bool:
        with pytest.raises(NotHeld):
            lock.release()
        return await lock.acquire()

    async with lock as outer, lock as inner:
        assert outer.token == inner.token
        assert await asyncio.create_task(child()) is False


async def test_task_that_waits_for_its_own_lock_gets_deadlock(client: aio.Client) -> None:
    async with client.lock("n"):
        with pytest.raises(Deadlock):
            await client.lock("n").acquire()


async def test_lock_may_be_released_by_another_task(sidecar: FakeSidecar, client: aio.Client) -> None:
    """A framework may enter and leave a dependency in different tasks."""
    lock = client.lock("n")
    await asyncio.create_task(lock.__aenter__())
    await asyncio.create_task(lock.__aexit__(None, None, None))
    await wait_free(sidecar, "n")


async def test_lock_may_be_released_by_a_callback_of_the_loop(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.lock("n")
    await lock.acquire()
    asyncio.get_running_loop().call_soon(lock.release)
    await wait_free(sidecar, "n")


@pytest.mark.parametrize("kind", [aio.Client.lock, aio.Client.rlock])
async def test_block_of_a_generator_may_be_ended_by_another_task(
    sidecar: FakeSidecar, client: aio.Client, kind: Callable[[aio.Client, str], aio.Lock]
) -> None:
    lock = kind(client, "n")

    async def body() -> AsyncIterator[None]:
        async with lock:
            yield

    generator = body()
    await asyncio.create_task(anext_of(generator))
    assert sidecar.holder("n")
    await generator.aclose()  # type: ignore[attr-defined]
    await wait_free(sidecar, "n")


async def anext_of(generator: AsyncIterator[None]) -> None:
    await generator.__anext__()


async def test_hold_that_the_body_acquired_again_ends_with_the_block(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.lock("n")
    async with lock:
        lock.release()
        await lock.acquire()
    assert not lock.locked()
    await wait_free(sidecar, "n")


async def test_info_list_ping_force_release(sidecar: FakeSidecar, client: aio.Client, other: aio.Client) -> None:
    assert await client.info("n") is None
    assert await client.ping() == "ok"
    sidecar.page_size = 2
    for i in range(5):
        await other.lock(f"n{i}").acquire()
    assert [row.name for row in await client.list()] == [f"n{i}" for i in range(5)]
    await client.force_release("n0")
    with pytest.raises(NotHeld):
        await client.force_release("n0")


# --- Loss ---


async def test_loss_cancels_the_body(sidecar: FakeSidecar, client: aio.Client) -> None:
    with pytest.raises(LockLost, match="stolen") as e:
        async with client.lock("n"):
            sidecar.lose("n", "stolen")
            await wait_forever()
    assert e.value.reason == "stolen"
    assert isinstance(e.value.__cause__, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is pending
    assert await client.ping() == "ok"


async def test_loss_read_together_with_the_grant_cancels_the_body(sidecar: FakeSidecar, client: aio.Client) -> None:
    """The lost event arrives before the task runs."""
    await client.ping()
    sidecar.silent = True

    async def wait() -> None:
        async with client.lock("n"):
            await wait_forever()

    task = asyncio.create_task(wait())
    await wait_until(sidecar, lambda: sidecar.requests("acquire"))
    with sidecar._lock_all:
        sidecar.answer_all()
        sidecar.lose("n", "deleted")
    with pytest.raises(LockLost, match="deleted"):
        await asyncio.wait_for(task, TIMEOUT)


async def test_deadline_cancels_the_body(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.lease_ns = S // 20
    with pytest.raises(LockLost, match="expired"):
        async with client.lock("n") as held:
            assert held.remaining <= 0.05
            await wait_forever()


async def test_deadline_is_compared_with_boottime_when_the_timer_fires_early(
    sidecar: FakeSidecar, other: aio.Client
) -> None:
    """The timer of the loop may fire early. The hold is lost only when its deadline has passed on CLOCK_BOOTTIME."""
    now = boottime()
    other._clock = sidecar.clock = lambda: now
    sidecar.lease_ns = S // 100
    with pytest.raises(LockLost, match="expired"):
        async with other.lock("n") as held:
            fired = asyncio.Event()
            body = held._body
            assert body is not None
            shared = held._shared
            lost = shared.lost

            def on_read(entry: locksidecar._core.Entry) -> str:
                fired.set()
                return lost(entry)

            shared.lost = on_read  # type: ignore[method-assign]
            await fired.wait()
            held.check()
            now += S // 100
            await wait_forever()


async def test_lease_event_extends_the_deadline_of_the_body(sidecar: FakeSidecar, client: aio.Client) -> None:
    async with client.lock("n") as held:
        sidecar.extend_leases(boottime() + 500 * S)
        await client.ping()
        assert held.remaining > 400


async def test_loss_found_by_check_does_not_cancel_code_after_the_body(
    sidecar: FakeSidecar, client: aio.Client
) -> None:
    with pytest.raises(LockLost, match="the lock 'n' was lost"):
        async with client.lock("n") as held:
            sidecar.lose("n", "forced")
            while held.lost is None:
                pass
            held.check()
    for _ in range(3):
        await asyncio.sleep(0)


async def test_loss_in_a_body_without_await_is_raised_at_its_end(sidecar: FakeSidecar, client: aio.Client) -> None:
    with pytest.raises(LockLost):
        async with client.lock("n"):
            sidecar.lose("n", "forced")
    for _ in range(3):
        await asyncio.sleep(0)


async def test_loss_does_not_mask_the_exception_of_the_body(sidecar: FakeSidecar, client: aio.Client) -> None:
    with pytest.raises(KeyError):
        async with client.lock("n"):
            sidecar.lose("n", "forced")
            try:
                await wait_forever()
            except asyncio.CancelledError:
                raise KeyError("the body's own") from None
    for _ in range(3):
        await asyncio.sleep(0)


async def test_body_that_swallows_the_cancellation_gets_lock_lost_at_its_end(
    sidecar: FakeSidecar, client: aio.Client
) -> None:
    with pytest.raises(LockLost):
        async with client.lock("n"):
            sidecar.lose("n", "forced")
            with contextlib.suppress(asyncio.CancelledError):
                await wait_forever()
    await asyncio.sleep(0)


async def test_cancellation_of_the_task_cancels_the_body_and_releases(sidecar: FakeSidecar, client: aio.Client) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with client.lock("n"):
            entered.set()
            await wait_forever()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_free(sidecar, "n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="cancellations are counted since 3.11")
async def test_cancellation_of_the_task_takes_precedence_over_the_loss(
    sidecar: FakeSidecar, client: aio.Client
) -> None:
    task: asyncio.Task[None]

    async def work() -> None:
        async with client.lock("n"):
            sidecar.lose("n", "forced")
            try:
                await wait_forever()
            finally:
                task.cancel()
                await asyncio.sleep(0)

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_loss_of_the_outer_lock_names_it_and_releases_the_inner_one(
    sidecar: FakeSidecar, client: aio.Client
) -> None:
    with pytest.raises(LockLost) as e:
        async with client.lock("outer"), client.lock("inner"):
            sidecar.lose("outer", "forced")
            await wait_forever()
    assert e.value.name == "outer"
    await wait_free(sidecar, "inner")


async def test_timeout_around_a_body_releases_the_lock(sidecar: FakeSidecar, client: aio.Client) -> None:
    async def work() -> None:
        async with client.lock("n"):
            await wait_forever()

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(work(), 0.05)
    await wait_free(sidecar, "n")


# --- Cancelled acquires ---


async def test_cancelled_acquire_sends_cancel(sidecar: FakeSidecar, client: aio.Client, other: aio.Client) -> None:
    holder = other.lock("n")
    await holder.acquire()
    task = asyncio.create_task(client.lock("n").acquire())
    await wait_until(sidecar, lambda: sidecar.waiting("n"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(sidecar, lambda: not sidecar.waiting("n"))
    holder.release()
    await wait_free(sidecar, "n")


async def test_grant_that_crosses_the_cancel_is_released(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.silent = True
    task = asyncio.create_task(client.lock("n").acquire())
    await wait_until(sidecar, lambda: sidecar.requests("acquire"))
    task.cancel()
    await wait_until(sidecar, lambda: sidecar.requests("cancel"))
    sidecar.answer_all()
    await wait_until(sidecar, lambda: sidecar.requests("release"))
    await wait_free(sidecar, "n")
    assert task.cancelled()


async def test_grant_processed_just_before_the_cancellation_is_released(
    sidecar: FakeSidecar, client: aio.Client
) -> None:
    task = asyncio.create_task(client.lock("n").acquire())
    shared = client._shared
    assert shared is not None
    notify = shared._notify

    def notify_and_cancel() -> None:
        granted = bool(shared.session.done_calls)
        notify()
        if granted:
            task.cancel()

    shared._notify = notify_and_cancel  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await task
    shared._notify = notify  # type: ignore[method-assign]
    await wait_until(sidecar, lambda: sidecar.requests("release"))
    await wait_free(sidecar, "n")


async def test_sidecar_that_does_not_answer_is_unavailable(
    sidecar: FakeSidecar, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transport, "CONNECT_WAIT", 0.02)
    monkeypatch.setattr(_transport, "ACQUIRE_GRACE", 0.02)
    sidecar.silent = True
    with pytest.raises(Unavailable, match="does not answer"):
        await client.lock("n", timeout=0.01).acquire()
    sidecar.answer_all()
    await wait_free(sidecar, "n")
    monkeypatch.undo()
    assert await client.lock("n", timeout=5).acquire()


async def test_unreachable_redis_raises_unavailable_and_not_false(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.refuse["acquire"] = ("unavailable", "Redis does not answer")
    lock = client.lock("n", timeout=1)
    with pytest.raises(Unavailable, match="Redis does not answer"):
        await lock.acquire(timeout=1)
    with pytest.raises(Unavailable):
        await lock.acquire(blocking=False)
    with pytest.raises(Unavailable):
        async with lock:
            pytest.fail("the body ran without the lock")


# --- Connections ---


async def test_missing_socket_raises_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Is locksidecar running"):
        await aio.Client(tmp_path / "none").lock("n", timeout=0).acquire()


async def test_connect_waits_for_a_sidecar_that_is_starting(sidecar: FakeSidecar) -> None:
    sidecar.stop_listening()
    task = asyncio.create_task(locksidecar.aconnect(sidecar.path))
    await asyncio.sleep(0)
    sidecar.listen()
    async with await task as client:
        assert await client.ping() == "ok"


async def test_other_protocol_version_is_unsupported(sidecar: FakeSidecar) -> None:
    sidecar.version = 2
    with pytest.raises(Unsupported, match="protocol version 2"):
        await locksidecar.aconnect(sidecar.path)


async def test_protocol_violation_releases_no_lock(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.lock("n")
    await lock.acquire()
    sidecar.silent = True
    task = asyncio.create_task(client.info("n"))
    await wait_until(sidecar, lambda: sidecar.requests("info"))
    sidecar.broadcast_bytes(b"\x00\x00\x00\x00")
    with pytest.raises(ProtocolError):
        await task
    sidecar.silent = False
    assert not await client.lock("n", timeout=0).acquire()
    lock.held.check()
    lock.release()
    await wait_free(sidecar, "n")
    assert sidecar.connections() == 1


async def test_full_socket_is_written_when_it_is_writable(sidecar: FakeSidecar, client: aio.Client) -> None:
    locks = [client.lock(f"n{i}") for i in range(50)]
    for lock in locks:
        await lock.acquire()
    shared = client._shared
    assert shared is not None
    assert shared.transport.sock is not None
    shared.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    sidecar.reading = False
    for lock in locks:
        lock.release()
    assert shared._writing
    sidecar.resume_reading()
    await wait_until(sidecar, lambda: not any(sidecar.holder(f"n{i}") for i in range(50)))
    assert await client.ping() == "ok"
    assert not shared._writing


async def test_close_loses_the_lock_and_cancels_the_body(sidecar: FakeSidecar, other: aio.Client) -> None:
    client = await aio.connect(sidecar.path)
    with pytest.raises(LockLost, match="closed"):
        async with client.lock("n"):
            await client.aclose()
            await wait_forever()
    await wait_free(sidecar, "n")
    with pytest.raises(ClientClosed):
        await client.ping()
    await client.aclose()


def test_client_belongs_to_its_loop(sidecar: FakeSidecar) -> None:
    client = aio.Client(sidecar.path)

    async def hold() -> aio.Held:
        lock = client.lock("n")
        await lock.acquire()
        return lock.held

    held = asyncio.run(hold())
    held.check()

    async def again() -> None:
        # The first loop is closed: the client starts a new session, and the lock of the old one is lost.
        assert await client.lock("n", timeout=5).acquire()
        with pytest.raises(LockLost, match="closed"):
            held.check()
        await asyncio.to_thread(elsewhere)
        await client.aclose()

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(client.ping())

    asyncio.run(again())


async def test_garbage_collected_client_warns_and_ends_its_session(sidecar: FakeSidecar) -> None:
    client = await aio.connect(sidecar.path)
    lock = client.lock("n")
    await lock.acquire()
    held = lock.held
    del client, lock
    held.check()  # the Held keeps the client alive
    with pytest.warns(ResourceWarning, match=r"unclosed <locksidecar\.aio\.Client .*aclose"):
        del held
    await wait_free(sidecar, "n")
    await wait_until(sidecar, lambda: not sidecar.connections())


def test_client_that_outlives_its_loop_warns_and_ends_its_session(sidecar: FakeSidecar) -> None:
    client = aio.Client(sidecar.path)

    async def hold(client: aio.Client) -> None:
        assert await client.lock("n").acquire()

    asyncio.run(hold(client))
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
    sidecar.wait_for(lambda: not sidecar.connections())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("restart", ["none", "unnoticed", "noticed"])
def test_client_that_is_collected_after_an_exception_ends_its_session(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch, restart: str
) -> None:
    """The interpreter may close the socket before it runs the finalizer of the client."""
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(error.exc_value))

    async def fail() -> None:
        client = await aio.connect(sidecar.path)
        await client.lock("n").acquire()
        shared = client._shared
        assert shared is not None
        if restart == "noticed":
            sidecar.stop_listening()
        if restart != "none":
            sidecar.restart()
        if restart == "noticed":
            while shared.transport.sock is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        raise RuntimeError("the program failed")

    def run() -> None:
        try:
            asyncio.run(fail())
        except RuntimeError as e:
            garbage: list[object] = [e]  # with the frames, and so with the client
            garbage.append(garbage)

    for _ in range(5):
        run()
        gc.collect()
        if restart == "noticed":
            sidecar.listen()
        sidecar.wait_for(lambda: not sidecar.holder("n"))
        sidecar.wait_for(lambda: not sidecar.connections())
    assert errors == []


@pytest.mark.filterwarnings("error:unclosed:ResourceWarning")
def test_client_that_is_collected_ends_its_session_though_warnings_are_errors(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(error.exc_type))

    async def acquire() -> None:
        await (await aio.connect(sidecar.path)).lock("n").acquire()
        sidecar.restart()  # the end of the connection does not end the session

    asyncio.run(acquire())
    gc.collect()
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert errors == [ResourceWarning]


async def test_connect_can_be_awaited_or_entered(sidecar: FakeSidecar) -> None:
    async with locksidecar.aconnect(sidecar.path) as client:
        assert await client.ping() == "ok"
    with pytest.raises(ClientClosed):
        await client.ping()
    async with await asyncio.create_task(aio.connect(sidecar.path)) as client:
        assert await client.ping() == "ok"


def test_use_without_an_asyncio_event_loop_raises_a_hint(sidecar: FakeSidecar) -> None:
    """For example under trio."""
    with pytest.raises(RuntimeError, match=r"asyncio.*trio\.to_thread"):
        aio.Client(sidecar.path).ping().send(None)


@pytest.mark.parametrize("stopped_at", [1, 2])
async def test_stopped_process_reads_lease_events_before_the_deadline_counts(
    sidecar: FakeSidecar, other: aio.Client, stopped_at: int
) -> None:
    """It is stopped when it reads the clock, until after the deadline that it knows."""
    now = boottime()
    readings = 0

    def clock() -> int:
        nonlocal readings, now
        readings += 1
        if readings == stopped_at:
            sidecar.extend_leases(now + 120 * S)
            now += 60 * S
        return now

    other._clock = sidecar.clock = lambda: now
    lock = other.lock("n")
    await lock.acquire()
    held = lock.held
    held._shared.clock = clock
    held.check()
    assert readings > stopped_at
    readings = 0
    assert held.lost is None
    readings = 0
    lock.release()


def test_lock_can_be_pickled(sidecar: FakeSidecar) -> None:
    client = aio.Client(sidecar.path)
    lock = pickle.loads(pickle.dumps(client.lock("n", timeout=3)))
    assert (lock.name, lock._client.path, lock._options.timeout) == ("n", sidecar.path, 3)


class SoftTimeLimit(Exception):
    """Raised by a signal handler; the task goes on after it."""


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Handles, "push"), (Handles, "remove"), (aio.Held, "_end_block")],
    ids=["push", "remove", "end_block"],
)
async def test_interrupt_around_a_grant_leaves_no_lock_held(
    sidecar: FakeSidecar, client: aio.Client, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    real, armed = getattr(owner, name), [True]

    def interrupted(*args: object) -> object:
        if armed.pop() if armed else False:
            raise SoftTimeLimit
        return real(*args)

    monkeypatch.setattr(owner, name, interrupted)
    lock = client.lock("n")
    with pytest.raises(SoftTimeLimit):
        async with lock:
            pass
    await wait_free(sidecar, "n")
    assert not lock.locked()
    async with lock:  # the session continues
        assert sidecar.holder("n")
    await wait_free(sidecar, "n")


async def test_release_may_be_awaited(client: aio.Client, sidecar: FakeSidecar) -> None:
    lock = client.lock("n")
    await lock.acquire()
    await lock.release()
    assert not lock.locked()
    async with lock as held:
        await held.release()
        assert held.released
