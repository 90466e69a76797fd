"""Confirmed releases: the client for asyncio against a fake sidecar."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from functools import partialmethod

import pytest
import pytest_asyncio
from fake import TIMEOUT, FakeSidecar

import locksidecar
from locksidecar import ClientClosed, Denied, LockLost, NotHeld, Unavailable, Unconfirmed, Unsupported, aio
from locksidecar._calls import Confirm
from locksidecar._transport import Socket, Timeouts


@pytest_asyncio.fixture
async def client(sidecar: FakeSidecar) -> AsyncIterator[aio.Client]:
    async with await locksidecar.aconnect(sidecar.path) as client:
        yield client


async def wait_until(sidecar: FakeSidecar, what: Callable[[], object]) -> None:
    await asyncio.to_thread(sidecar.wait_for, what)


async def wait_free(sidecar: FakeSidecar, name: str) -> None:
    await wait_until(sidecar, lambda: not sidecar.holder(name))


async def acquired(client: aio.Client, name: str = "n") -> aio.Held:
    lock = client.lock(name)
    await lock.acquire()
    return lock.held


async def wait_confirm_requests(sidecar: FakeSidecar, times: int = 1) -> None:
    await wait_until(sidecar, lambda: len(sidecar.requests("confirm")) == times)


# --- Release ---


async def test_call_releases_and_await_confirms(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.redis_slow = True
    held = await acquired(client)
    confirmation = held.release(confirm=True)
    assert held.released
    await wait_free(sidecar, "n")
    await wait_confirm_requests(sidecar)
    waiting = asyncio.ensure_future(confirmation)
    assert await client.ping() == "ok"
    assert not waiting.done()
    sidecar.recover_redis()
    await asyncio.wait_for(waiting, TIMEOUT)
    assert len(sidecar.requests("release")) == 1


async def test_lock_release_can_be_confirmed(sidecar: FakeSidecar, client: aio.Client) -> None:
    for lock in (client.lock("n"), client.rlock("n")):
        await lock.acquire()
        await lock.release(confirm=True, timeout=TIMEOUT)
        assert not sidecar.holder("n")
        with pytest.raises(NotHeld):
            await lock.release(confirm=True)
    assert len(sidecar.requests("confirm")) == 2


async def test_release_and_confirm_are_sent_in_one_write(
    sidecar: FakeSidecar, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def send(sock: Socket, data: bytearray, flags: int) -> int:
        if sock.getpeername() == sidecar.path:  # and not to that of an earlier test
            sent.append(bytes(data))
        return super(Socket, sock).send(data, flags)

    held = await acquired(client)
    monkeypatch.setattr(Socket, "send", send, raising=False)
    await held.release(confirm=True)
    assert len(sent) == 1
    assert sidecar.requests("confirm")[0]["name"] == "n"


async def test_release_without_confirm_may_be_awaited(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.lock("n", confirm=True)
    await lock.acquire()
    released = lock.release()
    assert not lock.locked()  # before the await
    await released
    await (await acquired(client)).release(confirm=False, timeout=1)
    assert await client.ping() == "ok"
    assert sidecar.requests("confirm") == []


async def test_release_of_a_lost_lock_raises_lock_lost_and_sends_no_confirm(
    sidecar: FakeSidecar, client: aio.Client
) -> None:
    held = await acquired(client)
    sidecar.lose("n", "stolen")
    with pytest.raises(LockLost, match="stolen"):
        await held.release(confirm=True)
    with pytest.raises(NotHeld):
        await held.release(confirm=True)
    assert sidecar.requests("confirm") == []


async def test_release_of_an_inner_entry_is_confirmed(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.rlock("n", confirm=True)
    async with lock:
        async with lock:
            pass
        assert len(sidecar.requests("confirm")) == 1
        assert sidecar.holder("n")
    assert len(sidecar.requests("confirm")) == 2
    assert not sidecar.holder("n")


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [("denied", Denied, "Redis refused"), ("unsupported", Unsupported, "does not confirm releases: upgrade it")],
)
async def test_refused_confirmation_raises_unconfirmed(
    sidecar: FakeSidecar, client: aio.Client, code: str, kind: type[Exception], text: str
) -> None:
    sidecar.refuse["confirm"] = (code, "Redis refused")
    held = await acquired(client)
    with pytest.raises(Unconfirmed, match=text) as e:
        await held.release(confirm=True)
    assert type(e.value.__cause__) is kind
    assert (e.value.code, e.value.name) == (code, "n")
    assert 29 < e.value.free_within <= 30
    assert not sidecar.holder("n")


@pytest.mark.parametrize("timeout", [0.01, 0, -1])
async def test_confirmation_timeout_raises_unconfirmed(
    sidecar: FakeSidecar, client: aio.Client, timeout: float
) -> None:
    sidecar.redis_slow = True
    held = await acquired(client)
    with pytest.raises(Unconfirmed, match="in time") as e:
        await held.release(confirm=True, timeout=timeout)
    assert isinstance(e.value.__cause__, TimeoutError)
    await wait_confirm_requests(sidecar)
    await wait_free(sidecar, "n")
    sidecar.recover_redis()  # the client ignores the answer
    assert await client.ping() == "ok"


async def test_confirmation_that_is_never_awaited_releases_and_warns(sidecar: FakeSidecar, client: aio.Client) -> None:
    held = await acquired(client)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        held.release(confirm=True)  # type: ignore[unused-coroutine]
    await wait_free(sidecar, "n")
    assert await client.ping() == "ok"


# --- Cancellation ---


@pytest.mark.parametrize("block", [True, False])
async def test_cancellation_ends_the_wait_and_nothing_else(
    sidecar: FakeSidecar, client: aio.Client, block: bool
) -> None:
    """The lock was released once, and stays released."""
    sidecar.redis_slow = True
    lock = client.lock("n", confirm=block)

    async def work() -> None:
        if block:
            async with lock:
                pass
        else:
            await lock.acquire()
            await lock.release(confirm=True)

    task = asyncio.ensure_future(work())
    await wait_confirm_requests(sidecar)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.ping() == "ok"
    assert not sidecar.holder("n")
    assert len(sidecar.requests("release")) == 1
    assert not list(lock._handles)

    # The client does not request the confirmation from the new sidecar either.
    held = await acquired(client, "kept")
    sidecar.restart()
    held.check()
    assert await client.ping() == "ok"
    sidecar.recover_redis()
    assert len(sidecar.requests("confirm")) == 1
    async with client.lock("n", confirm=True):
        pass


async def test_wait_for_ends_the_wait(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.redis_slow = True
    held = await acquired(client)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(held.release(confirm=True), 0.01)
    await wait_free(sidecar, "n")
    assert await client.ping() == "ok"
    assert len(sidecar.requests("release")) == 1


# --- Blocks ---


async def test_block_ends_when_the_release_is_confirmed(sidecar: FakeSidecar, client: aio.Client) -> None:
    async def body() -> None:
        async with client.lock("n", confirm=True):
            assert sidecar.requests("confirm") == []

    sidecar.redis_slow = True
    block = asyncio.ensure_future(body())
    await wait_confirm_requests(sidecar)
    await wait_free(sidecar, "n")
    assert not block.done()
    sidecar.recover_redis()
    await asyncio.wait_for(block, TIMEOUT)


async def test_block_without_a_confirmation_raises_unconfirmed(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.redis_slow = True
    lock = client.lock("n", confirm=True, confirm_timeout=0.01)
    with pytest.raises(Unconfirmed):
        async with lock:
            pass
    await wait_free(sidecar, "n")
    assert not list(lock._handles)


async def test_exception_of_the_body_gets_a_note_about_unconfirmed(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.redis_slow = True
    exc = ValueError("of the body")
    with pytest.raises(ValueError, match="of the body") as e:
        async with client.lock("n", confirm=True, confirm_timeout=0.01):
            raise exc
    assert e.value is exc
    if sys.version_info >= (3, 11):
        assert "the release of the lock 'n' is not confirmed" in exc.__notes__[0]
    await asyncio.to_thread(sidecar.wait_for, lambda: len(sidecar.requests("confirm")) == 1)
    await wait_free(sidecar, "n")


async def test_cancelled_block_does_not_wait_for_the_confirmation(sidecar: FakeSidecar, client: aio.Client) -> None:
    inside = asyncio.Event()

    async def body() -> None:
        async with client.lock("n", confirm=True):
            inside.set()
            await asyncio.get_running_loop().create_future()

    sidecar.redis_slow = True
    task = asyncio.ensure_future(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_free(sidecar, "n")
    assert await client.ping() == "ok"
    assert sidecar.requests("confirm") == []


async def test_block_whose_lock_is_lost_sends_no_confirm(sidecar: FakeSidecar, client: aio.Client) -> None:
    with pytest.raises(LockLost, match="stolen"):
        async with client.lock("n", confirm=True):
            sidecar.lose("n", "stolen")
            await asyncio.get_running_loop().create_future()
    assert sidecar.requests("confirm") == []


async def test_block_that_reacquired_its_lock_confirms_the_newer_hold(sidecar: FakeSidecar, client: aio.Client) -> None:
    lock = client.lock("n", confirm=True)
    async with lock as held:
        held.release()
        await lock.acquire()
    assert len(sidecar.requests("confirm")) == 1
    assert not sidecar.holder("n")


# --- Restarts and the end of the client ---


@pytest.mark.parametrize("more", [True, False])
async def test_new_sidecar_confirms_a_release(sidecar: FakeSidecar, client: aio.Client, more: bool) -> None:
    """Whether or not the session holds another lock, and is therefore resumed."""
    if more:
        await acquired(client, "other")
    held = await acquired(client)
    sidecar.redis_slow = True
    releasing = asyncio.ensure_future(held.release(confirm=True))
    await wait_confirm_requests(sidecar)
    sidecar.restart()
    await wait_confirm_requests(sidecar, 2)
    assert len(sidecar.requests("claim")) == (1 if more else 0)
    assert len(sidecar.requests("info")) == (0 if more else 1)
    assert not releasing.done()
    sidecar.recover_redis()
    await asyncio.wait_for(releasing, TIMEOUT)
    assert len(sidecar.requests("release")) == 1


async def test_release_is_confirmed_when_a_sidecar_listens_again(sidecar: FakeSidecar, client: aio.Client) -> None:
    held = await acquired(client)
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()
    releasing = asyncio.ensure_future(held.release(confirm=True))
    shared = client._shared
    assert shared is not None
    await asyncio.sleep(0)
    assert any(isinstance(call, Confirm) for call in shared._waiting)
    assert sidecar.holder("n")
    sidecar.listen()
    await asyncio.wait_for(releasing, TIMEOUT)
    assert not sidecar.holder("n")


async def test_release_without_a_sidecar_raises_unconfirmed(
    sidecar: FakeSidecar, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await acquired(client)
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()
    with monkeypatch.context() as patch:
        patch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, reconnect=0.01))
        with pytest.raises(Unconfirmed, match="no sidecar") as e:
            await held.release(confirm=True)
    assert type(e.value.__cause__) is Unavailable
    sidecar.listen()
    await wait_free(sidecar, "n")  # the release is delivered nevertheless


async def test_sidecar_without_its_state_leaves_releases_unconfirmed(sidecar: FakeSidecar, client: aio.Client) -> None:
    held, stray = await acquired(client), await acquired(client, "stray")
    sidecar.redis_slow = True
    releasing = asyncio.ensure_future(held.release(confirm=True))
    await wait_confirm_requests(sidecar)
    sidecar.restart_without_state()
    with pytest.raises(Unconfirmed, match="does not know"):
        await asyncio.wait_for(releasing, TIMEOUT)
    with pytest.raises(Unconfirmed, match="does not know"):
        await stray.release(confirm=True)
    assert len(sidecar.requests("confirm")) == 1


async def test_close_ends_the_wait_for_a_confirmation(sidecar: FakeSidecar, client: aio.Client) -> None:
    sidecar.redis_slow = True
    held = await acquired(client)
    releasing = asyncio.ensure_future(held.release(confirm=True))
    await wait_confirm_requests(sidecar)
    await client.aclose()
    with pytest.raises(Unconfirmed, match="closed") as e:
        await releasing
    assert type(e.value.__cause__) is ClientClosed


async def test_tasks_confirm_over_many_restarts(sidecar: FakeSidecar, client: aio.Client) -> None:
    rounds = 0

    async def work(name: str) -> None:
        nonlocal rounds
        for _ in range(40):
            async with client.lock(name, confirm=True, confirm_timeout=TIMEOUT) as held:
                held.check()
            rounds += 1
            if rounds % 10 == 0:
                sidecar.restart()

    await asyncio.wait_for(asyncio.gather(*(work(f"n{i % 3}") for i in range(6))), TIMEOUT)
    for i in range(3):
        assert not sidecar.holder(f"n{i}")
