"""Read/write locks: requests, handles, downgrades and restarts. test_semantics.py has what they do."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator

import pytest
from fake import FakeSidecar

from locksidecar import (
    BadRequest,
    Client,
    Deadlock,
    LockLost,
    LockTimeout,
    NotHeld,
    Unavailable,
    Unsupported,
    aio,
    testing,
)


@pytest.fixture
async def tasks(sidecar: FakeSidecar) -> AsyncIterator[aio.Client]:
    async with aio.connect(sidecar.path) as client:
        yield client


def in_thread(work: object) -> threading.Thread:
    assert callable(work)
    thread = threading.Thread(target=work)
    thread.start()
    return thread


# --- What is sent ---


def test_rwlock_is_made_without_a_request(sidecar: FakeSidecar) -> None:
    client = Client(sidecar.path, name_prefix="billing:")
    rw = client.rwlock("catalog")
    rw.read(), rw.write()
    assert rw.name == "billing:catalog"
    assert repr(rw) == "<locksidecar.RWLock 'billing:catalog'>"
    assert repr(aio.Client(sidecar.path).rwlock("n")) == "<locksidecar.aio.RWLock 'n'>"
    assert not sidecar.received


def test_requests_have_mode_and_options(sidecar: FakeSidecar, client: Client) -> None:
    rw = client.rwlock("n", lease=4, max_hold=5, crash_delay=6, fair=True, timeout=3)
    with rw.read():
        pass
    with rw.write(keep=7):
        pass
    shared, exclusive = sidecar.requests("acquire_rw")
    for request in shared, exclusive:
        assert request.pop("id")
        assert request.pop("owner")
        assert 2900 <= request.pop("wait_ms") <= 3000
    common = {"op": "acquire_rw", "name": "n", "fair": True, "lease_ms": 4000, "max_hold_ms": 5000}
    common |= {"crash_delay_ms": 6000}
    assert shared == common | {"shared": True}
    assert exclusive == common | {"keep_ms": 7000}


async def test_requests_of_tasks(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    rw = tasks.rwlock("n", timeout=30)
    async with rw.read(timeout=0) as held:
        assert held.shared
    async with rw.write(timeout=-1) as held:
        assert not held.shared
    shared, exclusive = sidecar.requests("acquire_rw")
    assert (shared["shared"], shared["wait_ms"]) == (True, 0)
    assert "shared" not in exclusive
    assert "wait_ms" not in exclusive


def test_arguments_are_checked(client: Client) -> None:
    with pytest.raises(BadRequest, match="must not be empty"):
        client.rwlock("")
    with pytest.raises(BadRequest, match="timeout must be"):
        client.rwlock("n").read(timeout=-2)
    for rw in client.rwlock("n"), aio.Client(client.path).rwlock("n"):
        with pytest.raises(ValueError, match='the mode must be "read" or "write", not \'shared\''):
            rw.synchronized("shared")  # type: ignore[arg-type]
    with client.lock("a") as held:
        assert not held.shared
        with pytest.raises(BadRequest, match="the lock 'a' is no read/write lock"):
            held.downgrade()


def test_sidecar_without_read_write_locks_is_named(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.refuse["acquire_rw"] = ("unsupported", "this sidecar does not know this op")
    with pytest.raises(Unsupported, match="has no read/write locks: upgrade it"):
        client.rwlock("n").read().acquire()


def test_rwlocks_can_be_pickled(client: Client) -> None:
    for rw in client.rwlock("n", timeout=2), aio.Client(client.path).rwlock("n", timeout=2):
        copy = pickle.loads(pickle.dumps(rw))
        assert (type(copy), copy.name, copy._options) == (type(rw), "n", rw._options)
    lock = pickle.loads(pickle.dumps(client.rwlock("n").read()))
    with lock as held:
        assert held.shared


# --- Handles ---


def test_owner_enters_again_in_the_mode_of_its_hold(sidecar: FakeSidecar, client: Client) -> None:
    rw = client.rwlock("n")
    with rw.write() as outer, rw.read() as inner:
        assert inner.token == outer.token
        assert not inner.shared
        assert sidecar.held_by(sidecar.holder("n")) == {1: 2}
    with rw.read() as outer, rw.read() as inner:
        assert inner.shared
        assert inner.token == outer.token
        with pytest.raises(Deadlock, match="A shared hold cannot become exclusive: release it first"):
            rw.write().acquire()
        assert not rw.write(timeout=0).acquire()
    sidecar.wait_for(lambda: not sidecar.is_held("n"))


def test_decorators(sidecar: FakeSidecar, client: Client) -> None:
    rw = client.rwlock("n")
    modes = []

    @rw.synchronized("read")
    def read() -> None:
        modes.append(sidecar.requests("acquire_rw")[-1].get("shared", False))

    @rw.synchronized("write")
    def write() -> None:
        modes.append(sidecar.requests("acquire_rw")[-1].get("shared", False))
        read()

    read()
    write()
    assert modes == [True, False, True]


async def test_decorators_of_tasks(tasks: aio.Client) -> None:
    rw = tasks.rwlock("n", timeout=0)
    both = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None

    @rw.synchronized("read")
    async def read() -> None:
        if both is not None:
            await both.wait()

    @rw.synchronized("write")
    async def write() -> None:
        with pytest.raises(LockTimeout):
            await asyncio.create_task(read())

    await asyncio.gather(read(), read())
    await write()


def test_on_lost_is_called(sidecar: FakeSidecar, client: Client) -> None:
    lost: list[LockLost] = []
    seen = threading.Event()

    def on_lost(error: LockLost) -> None:
        lost.append(error)
        seen.set()

    held = client.rwlock("n", on_lost=on_lost).read()
    held.acquire()
    sidecar.lose("n", "forced")
    assert seen.wait(20)
    assert [e.reason for e in lost] == ["forced"]


# --- Downgrade ---


def test_downgrade_admits_readers(sidecar: FakeSidecar, client: Client) -> None:
    rw = client.rwlock("n")
    with rw.write() as outer, rw.read() as inner:
        granted = threading.Event()

        def read() -> None:
            with client.rwlock("n").read() as held:
                assert held.shared
                granted.set()

        reader = in_thread(read)
        sidecar.wait_for(lambda: sidecar.waiting("n") == 1)
        inner.downgrade()
        outer.downgrade()  # it is shared already
        assert granted.wait(20)
        reader.join()
        assert outer.shared
        assert inner.shared
        assert len(sidecar.requests("downgrade")) == 1
    sidecar.wait_for(lambda: not sidecar.is_held("n"))


async def test_downgrade_of_a_task(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    rw = tasks.rwlock("n")
    async with rw.write() as held:

        async def read() -> bool:
            async with rw.read() as other:
                return other.shared

        reader = asyncio.create_task(read())
        await asyncio.to_thread(sidecar.wait_for, lambda: sidecar.waiting("n") == 1)
        await held.downgrade()
        assert await reader
        assert held.shared
    with pytest.raises(NotHeld):
        await held.downgrade()


def test_downgrade_of_a_lost_hold(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rwlock("n").write()
    lock.acquire()
    held = lock.held
    sidecar.lose("n", "stolen")
    with pytest.raises(LockLost, match="stolen"):
        held.downgrade()
    with pytest.raises(LockLost):
        held.release()
    with pytest.raises(NotHeld):
        held.downgrade()


def test_hold_counts_as_shared_without_an_answer(sidecar: FakeSidecar, client: Client) -> None:
    with client.rwlock("n").write() as held:
        sidecar.refuse["downgrade"] = ("unavailable", "the sidecar is stopping")
        with pytest.raises(Unavailable):
            held.downgrade()
        assert held.shared
        sidecar.refuse.clear()
        held.downgrade()
        assert len(sidecar.requests("downgrade")) == 2
        assert client.rwlock("n").read(timeout=0) is not None


def test_downgrade_that_was_carried_out_before(sidecar: FakeSidecar, client: Client) -> None:
    """A successor has the hold as shared, and the client did not receive the answer of its predecessor."""
    with client.rwlock("n").write() as held:
        sidecar.refuse["downgrade"] = ("bad_request", "hold 1 is shared already")
        held.downgrade()
        assert held.shared


def test_downgraded_hold_outlasts_a_restart(sidecar: FakeSidecar, client: Client) -> None:
    with client.rwlock("n").write() as held:
        held.downgrade()
        sidecar.restart()
        held.check()
        assert held.shared
        info = client.info("n")
        assert info is not None
        assert (info.kind, info.held, info.shared, info.holders[0].shared) == ("rw", 1, 1, True)


@pytest.mark.parametrize("has_state", [True, False])
def test_downgrade_over_a_restart(sidecar: FakeSidecar, client: Client, has_state: bool) -> None:
    with client.rwlock("n").write() as held:
        sidecar.restart() if has_state else sidecar.restart_without_state()
        if has_state:
            held.downgrade()
        else:
            with pytest.raises(Unavailable, match="does not know the hold, which excludes others until its deadline"):
                held.downgrade()
        assert held.shared
        held.check()


# --- locksidecar.testing ---


def test_another_host_shares_the_lock() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        rw = client.rwlock("n", timeout=0)
        with sidecar.held_elsewhere("n", shared=True):
            with rw.read() as held:
                assert held.shared
            with pytest.raises(LockTimeout), rw.write():
                pass
        with sidecar.held_elsewhere("n"), pytest.raises(LockTimeout), rw.read():
            pass
        with rw.write():
            assert sidecar.is_held("n")
