"""What a lock does: the same tests against the sidecar in memory and against the daemon, so that they cannot differ."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import locksidecar
from locksidecar import Client, Deadlock, Denied, Held, LockInfo, LockLost, LockTimeout, NotHeld, aio, testing

BINARY = os.environ.get("LOCKSIDECAR_BINARY", "")


@dataclass
class System:
    """A sidecar that serves at path."""

    path: str
    advance: Callable[[float], None]  # of the daemon, nothing: its clock is the host's


@pytest.fixture(scope="module", params=["memory", "daemon"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    if request.param == "memory":
        with testing.Sidecar() as sidecar:
            yield System(sidecar.path, sidecar.advance)
        return
    if not BINARY:
        pytest.skip("$LOCKSIDECAR_BINARY is not set; `make test` sets it")
    path = str(Path(tmp_path_factory.mktemp("daemon")) / "s")
    daemon = subprocess.Popen([BINARY, "serve", "--socket", path, "--embedded"])
    with Client(path) as client:
        client.connect()
        yield System(path, lambda seconds: None)
    daemon.terminate()
    assert daemon.wait(30) == 0


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with locksidecar.connect(system.path) as client:
        yield client


@pytest.fixture
def other(system: System) -> Iterator[Client]:
    with locksidecar.connect(system.path) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def row(client: Client, name: str) -> LockInfo:
    info = client.info(name)
    assert info is not None
    return info


def wait_until(what: Callable[[], object]) -> None:
    while not what():
        pass


def wait_lost(system: System, held: Held, seconds: float) -> None:
    """Waits until held is lost, which takes `seconds`."""
    system.advance(seconds)
    wait_until(lambda: held.lost)


def waiting(client: Client, name: str) -> int:
    info = client.info(name)
    return info.waiting if info else 0


def test_owners_exclude_each_other(client: Client, other: Client, name: str) -> None:
    with client.lock(name):
        assert not other.lock(name).acquire(blocking=False)
        with pytest.raises(LockTimeout), other.lock(name, timeout=0.01):
            pass
    with other.lock(name, timeout=5):
        pass


def test_tokens_increase(client: Client, other: Client, name: str) -> None:
    tokens = []
    for user in (client, other, client, client, other):
        with user.lock(name) as held:
            tokens.append(held.token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("fair", [False, True])
def test_waiters_get_the_lock_in_their_order(client: Client, other: Client, name: str, fair: bool) -> None:
    order: list[int] = []

    def wait(i: int) -> None:
        with other.lock(name, fair=fair) as held:
            order.append(i)
            held.check()

    with client.lock(name):
        threads = [threading.Thread(target=wait, args=(i,)) for i in range(3)]
        for n, thread in enumerate(threads, 1):
            thread.start()
            while waiting(client, name) < n:
                pass
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_timeout_ends_a_wait_and_leaves_no_waiter(system: System, client: Client, other: Client, name: str) -> None:
    with client.lock(name):
        assert not other.lock(name).acquire(timeout=0.02)
        assert row(client, name).waiting == 0


def test_rlock_is_reentered(client: Client, other: Client, name: str) -> None:
    lock = client.rlock(name)
    with lock as outer, lock as inner:
        assert outer.token == inner.token
        assert row(client, name).count == 2
        inner.release()
        assert row(client, name).count == 1
        assert not other.lock(name).acquire(blocking=False)
        lock.acquire()
    with other.lock(name, timeout=5):
        pass


def test_owner_that_waits_for_itself_gets_deadlock(client: Client, name: str) -> None:
    with client.lock(name), pytest.raises(Deadlock, match=r"which you hold; .* as a re-entrant lock\. rlock\(\) makes"):
        client.lock(name).acquire()


def test_try_of_the_holder_is_no_deadlock(client: Client, name: str) -> None:
    with client.lock(name):
        assert not client.lock(name).acquire(blocking=False)


def test_owners_that_wait_for_each_other_get_deadlock(client: Client, other: Client, name: str) -> None:
    a, b = f"{name} a", f"{name} b"
    has_b, may_end = threading.Event(), threading.Event()

    def hold_b_and_wait_for_a() -> None:
        with other.lock(b):
            has_b.set()
            with other.lock(a):
                may_end.wait()

    thread = threading.Thread(target=hold_b_and_wait_for_a)
    with client.lock(a):
        thread.start()
        has_b.wait()
        wait_until(lambda: waiting(client, a))
        with pytest.raises(
            Deadlock, match=f"held by owner .* of pid {os.getpid()} .*, who waits for .*, which you hold"
        ):
            client.lock(b).acquire()
    may_end.set()
    thread.join()


def test_fixed_lease_ends(system: System, client: Client, other: Client, name: str) -> None:
    lock = client.lock(name, lease=2)
    lock.acquire()
    held = lock.held
    assert row(client, name).lease_ms == 2000
    assert 0 < held.remaining <= 2
    wait_lost(system, held, 2)
    with other.lock(name, timeout=5) as later:
        assert held.lost == "expired"
        assert held.remaining == 0
        assert later.token > held.token
        with pytest.raises(LockLost, match="expired"):
            held.release()
        later.check()


def test_reentry_keeps_the_lease_of_the_first_entry(client: Client, name: str) -> None:
    first = client.rlock(name, lease=60)
    with first as held, client.rlock(name, lease=1000) as inner:
        assert inner.deadline == held.deadline
        assert row(client, name).lease_ms == 60_000


def test_max_hold_ends_a_renewed_hold(system: System, client: Client, other: Client, name: str) -> None:
    lock = client.lock(name, max_hold=2)
    lock.acquire()
    held = lock.held
    assert row(client, name).lease_ms == 0
    wait_lost(system, held, 2)
    assert held.lost == "max_hold"
    with other.lock(name, timeout=5):
        pass


def test_close_releases_and_ends_waits(system: System, client: Client, name: str) -> None:
    with locksidecar.connect(system.path) as leaver:
        leaver.lock(name).acquire()
        leaver.lock(f"{name} too").acquire()
    with client.lock(name, timeout=5), client.lock(f"{name} too", timeout=5):
        pass


def test_crash_delay_keeps_the_lock_after_its_session(system: System, client: Client, name: str) -> None:
    with locksidecar.connect(system.path) as leaver:
        leaver.lock(name, crash_delay=3).acquire()
    assert row(client, name).orphan
    assert not client.lock(name).acquire(blocking=False)
    system.advance(3)
    with client.lock(name, timeout=5):
        pass


def test_keep_keeps_the_lock_after_its_release(system: System, client: Client, other: Client, name: str) -> None:
    lock = client.lock(name, keep=3)
    with lock as first:
        assert row(other, name).keep_left_ms > 0
        assert not row(other, name).orphan
    client.ping()  # the release is executed before it; the requests of another client have no such order
    assert row(other, name).orphan
    assert not lock.acquire(blocking=False)
    assert not other.lock(name).acquire(blocking=False)
    system.advance(3)
    with other.lock(name, timeout=5) as held:
        assert held.token > first.token


def test_keep_keeps_the_lock_after_its_session_and_max_hold(system: System, client: Client, name: str) -> None:
    with locksidecar.connect(system.path) as leaver:
        leaver.lock(name, keep=3600).acquire()
        lost = leaver.lock(f"{name} too", max_hold=0.1, keep=3600)
        lost.acquire()
        wait_lost(system, lost.held, 0.1)
    for kept in (name, f"{name} too"):
        assert row(client, kept).orphan
        assert not client.lock(kept).acquire(blocking=False)
        client.force_release(kept)
        with client.lock(kept, timeout=5):
            pass


def test_release_before_close_is_not_delayed(system: System, client: Client, name: str) -> None:
    with locksidecar.connect(system.path) as leaver, leaver.lock(name, crash_delay=3600):
        pass
    with client.lock(name, timeout=5):
        pass


def test_force_release(client: Client, other: Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    other.force_release(name)
    with pytest.raises(LockLost, match="forced"):
        lock.held.check()
    with pytest.raises(NotHeld):
        other.force_release(name)
    with other.lock(name, timeout=5) as held:
        with pytest.raises(LockLost, match="forced"):
            lock.release()
        held.check()


def test_info_describes_holder_and_waiters(client: Client, other: Client, name: str) -> None:
    assert client.info(name) is None
    with client.lock(name) as held:
        thread = threading.Thread(target=lambda: other.lock(name).acquire())
        thread.start()
        wait_until(lambda: waiting(client, name))
        info = row(client, name)
        assert (info.state, info.token, info.count, info.pid, info.uid) == (
            "held",
            held.token,
            1,
            os.getpid(),
            os.getuid(),
        )
        assert info.owner
        assert "py" in info.cmd
        assert info.deadline_ns / 1e9 == pytest.approx(held.deadline)
        (waiter,) = info.waiters
        assert (waiter.pid, waiter.uid) == (os.getpid(), os.getuid())
        assert waiter.session != info.session
        assert name in {x.name for x in other.list()}
    thread.join()
    assert row(client, name).session == waiter.session


# --- Semaphores ---


def free_permits(client: Client, name: str, of: int) -> int:
    """How many permits one acquire can have now."""
    for permits in range(of, 0, -1):
        if (held := client.semaphore(name, permits=of).acquire(permits, blocking=False)) is not None:
            held.release(confirm=True)
            return permits
    return 0


def test_clients_share_the_permits(client: Client, other: Client, name: str) -> None:
    with client.semaphore(name, permits=3).acquire(2) as first:
        assert (first.permits, first.of) == (2, 3)
        assert other.semaphore(name, permits=3).acquire(2, blocking=False) is None
        with pytest.raises(LockTimeout):
            other.semaphore(name, permits=3, timeout=0.01).acquire(2)
        with other.semaphore(name, permits=3).acquire() as second:
            assert second.token > first.token
            assert free_permits(client, name, 3) == 0
    with other.semaphore(name, permits=3, timeout=5).acquire(3):
        pass


def test_each_request_has_a_number_of_permits_of_its_own(client: Client, other: Client, name: str) -> None:
    with client.semaphore(name, permits=3).acquire(2):
        assert other.semaphore(name, permits=2).acquire(blocking=False) is None
        with other.semaphore(name, permits=4).acquire(2) as held:
            assert held.of == 4
            assert client.semaphore(name, permits=4).acquire(blocking=False) is None
            assert row(client, name).of == 4


def test_permits_are_granted_in_the_order_of_the_requests(client: Client, other: Client, name: str) -> None:
    """Also if a later request would fit, and the first one does not yet."""
    order: list[int] = []
    may_end = threading.Event()

    def wait(permits: int) -> None:
        with other.semaphore(name, permits=3).acquire(permits):
            order.append(permits)
            may_end.wait()

    with client.semaphore(name, permits=3).acquire(2) as first:
        threads = [threading.Thread(target=wait, args=(permits,)) for permits in (3, 1, 2)]
        for n, thread in enumerate(threads, 1):
            thread.start()
            while waiting(client, name) < n:
                pass
        assert client.semaphore(name, permits=3).acquire(blocking=False) is None
        first.release()
        wait_until(lambda: order)
        assert (order, waiting(client, name)) == ([3], 2)
        may_end.set()
    for thread in threads:
        thread.join()
    assert sorted(order[1:]) == [1, 2]  # both fit


def test_end_of_a_wait_lets_those_after_it_pass(client: Client, other: Client, name: str) -> None:
    passed, ended = threading.Event(), threading.Event()

    def wait_for_all() -> None:
        with pytest.raises(LockTimeout):
            other.semaphore(name, permits=3).acquire(3, timeout=0.2)
        ended.set()

    def wait_for_one() -> None:
        with other.semaphore(name, permits=3).acquire():
            passed.set()

    with client.semaphore(name, permits=3).acquire(2):
        threads = [threading.Thread(target=f) for f in (wait_for_all, wait_for_one)]
        threads[0].start()
        wait_until(lambda: waiting(client, name) or ended.is_set())
        threads[1].start()
        assert passed.wait(20)
        assert ended.is_set()
    for thread in threads:
        thread.join()


def test_readers_share_and_a_writer_excludes(client: Client, other: Client, name: str) -> None:
    mine, theirs = client.rwlock(name), other.rwlock(name)
    with mine.read() as first, theirs.read() as second:
        assert first.shared
        assert second.shared
        assert not theirs.write(timeout=0).acquire()
        assert (row(client, name).kind, row(client, name).held, row(client, name).shared) == ("rw", 2, 2)
    with mine.write() as writer:
        assert not writer.shared
        assert writer.token > max(first.token, second.token)
        assert not theirs.read(timeout=0).acquire()
        writer.downgrade()
        with theirs.read(timeout=5) as second:
            assert second.token >= writer.token
            assert not theirs.write(timeout=0).acquire()
    with theirs.write(timeout=5):
        pass


def test_reader_waits_for_an_earlier_writer(client: Client, other: Client, name: str) -> None:
    with client.rwlock(name).read():
        order = []

        def acquire(what: str) -> None:
            rw = other.rwlock(name)
            with rw.write() if what == "write" else rw.read():
                order.append(what)

        threads = []
        for n, what in enumerate(["write", "read"], 1):
            threads += [threading.Thread(target=acquire, args=(what,))]
            threads[-1].start()
            wait_until(lambda n=n: waiting(client, name) == n)  # type: ignore[misc]
        assert not other.rwlock(name).read(timeout=0).acquire()
    for thread in threads:
        thread.join()
    assert order == ["write", "read"]


def test_lock_and_read_write_lock_do_not_share_a_name(client: Client, other: Client, name: str) -> None:
    with client.lock(name), pytest.raises(Denied, match="in use as a lock on this host; choose another name"):
        other.rwlock(name).read().acquire()
    with client.rwlock(f"{name} too").read(), pytest.raises(Denied, match="in use as a read/write lock on this host"):
        other.lock(f"{name} too").acquire()


def test_lock_and_semaphore_do_not_share_a_name(client: Client, other: Client, name: str) -> None:
    semaphore = other.semaphore(name, permits=2)
    with client.lock(name), pytest.raises(Denied, match="in use as a lock on this host; choose another name"):
        semaphore.acquire()
    semaphore = other.semaphore(f"{name} too", permits=2)
    with semaphore.acquire(), pytest.raises(Denied, match="in use as a semaphore on this host; choose another name"):
        client.lock(semaphore.name).acquire()


def test_fixed_lease_of_permits_ends(system: System, client: Client, other: Client, name: str) -> None:
    leased = client.semaphore(name, permits=2, lease=2).acquire()
    bounded = client.semaphore(name, permits=2, max_hold=2).acquire()
    system.advance(2)
    with other.semaphore(name, permits=2, timeout=5).acquire(2):
        wait_until(lambda: leased.lost and bounded.lost)
        assert (leased.lost, bounded.lost) == ("expired", "max_hold")
        with pytest.raises(LockLost, match="the hold of 1 of the permits of"):
            leased.release()


def test_end_of_a_session_frees_its_permits(system: System, client: Client, name: str) -> None:
    with locksidecar.connect(system.path) as leaver:
        held = [leaver.semaphore(name, permits=3).acquire() for _ in range(2)]
        kept = leaver.semaphore(name, permits=3, crash_delay=3).acquire()
    assert {h.lost for h in (*held, kept)} == {"closed"}
    with client.semaphore(name, permits=3, timeout=1).acquire(2):
        assert [h.orphan for h in row(client, name).holders] == [True, False]
        assert client.semaphore(name, permits=3).acquire(blocking=False) is None
    system.advance(3)
    with client.semaphore(name, permits=3, timeout=5).acquire(3):
        pass


def test_force_release_of_one_hold_and_of_all(client: Client, other: Client, name: str) -> None:
    semaphore = client.semaphore(name, permits=4)
    first, second, third = semaphore.acquire(), semaphore.acquire(), semaphore.acquire(2)
    numbers = {h.token: h.hold for h in row(other, name).holders}
    other.force_release(name, hold=numbers[second.token])
    wait_until(lambda: second.lost)
    assert (first.lost, second.lost, third.lost) == (None, "forced", None)
    with pytest.raises(NotHeld):
        other.force_release(name, hold=numbers[second.token])
    other.force_release(name)
    wait_until(lambda: first.lost and third.lost)
    with pytest.raises(NotHeld):
        other.force_release(name)
    with other.semaphore(name, permits=4, timeout=5).acquire(4):
        pass


def test_info_describes_the_holds_of_a_semaphore(client: Client, other: Client, name: str) -> None:
    with client.semaphore(name, permits=9).acquire(2) as first, other.semaphore(name, permits=9).acquire() as second:
        thread = threading.Thread(target=lambda: other.semaphore(name, permits=10).acquire(8).release())
        thread.start()
        wait_until(lambda: waiting(client, name))
        info = row(client, name)
        assert (info.kind, info.state, info.held, info.permits, info.of) == ("permits", "held", 2, 3, 10)
        assert (info.token, info.count, info.pid, info.owner) == (first.token, 1, os.getpid(), 0)
        assert [(h.token, h.permits, h.pid, h.uid) for h in info.holders] == [
            (first.token, 2, os.getpid(), os.getuid()),
            (second.token, 1, os.getpid(), os.getuid()),
        ]
        assert info.holders[0].hold == info.hold
        assert info.holders[0].held_seconds >= 0
        assert [(w.permits, w.pid) for w in info.waiters] == [(8, os.getpid())]
        assert {x.name: x.kind for x in other.list()}[name] == "permits"
        with client.lock(f"{name} too"):
            assert row(client, f"{name} too").kind == "lock"
    thread.join()


def test_confirmed_release_of_permits(client: Client, other: Client, name: str) -> None:
    with client.semaphore(name, permits=2, confirm=True, confirm_timeout=20).acquire(2):
        pass
    assert other.semaphore(name, permits=2).acquire(2, blocking=False)


def test_decorated_function_shares_the_permits(client: Client, other: Client, name: str) -> None:
    @client.semaphore(name, permits=3, timeout=5).synchronized(2)
    def work() -> int:
        return free_permits(other, name, 3)

    assert work() == 1
    with other.semaphore(name, permits=3, timeout=5).acquire(3):
        pass


async def test_tasks_share_the_permits(system: System, name: str) -> None:
    inside = most = 0

    async def work(client: aio.Client, permits: int) -> None:
        nonlocal inside, most
        for _ in range(5):
            async with client.semaphore(name, permits=3).acquire(permits) as held:
                inside += permits
                most = max(most, inside)
                await client.ping()
                held.check()
                inside -= permits

    async with aio.connect(system.path) as one, aio.connect(system.path) as two:
        await asyncio.gather(*[work(client, permits) for client in (one, two) for permits in (1, 1, 2, 3)])
    assert most == 3


async def test_loss_of_permits_cancels_the_task(system: System, name: str) -> None:
    async with aio.connect(system.path) as client, aio.connect(system.path) as other:
        with pytest.raises(LockLost, match="forced"):
            async with client.semaphore(name, permits=2).acquire(2):
                await other.force_release(name)
                await asyncio.Event().wait()
        semaphore = client.semaphore(name, permits=2)
        async with semaphore.acquire() as kept, semaphore.acquire() as held:
            info = await client.info(name)
            assert info is not None
            (number,) = [h.hold for h in info.holders if h.token == held.token]
            with pytest.raises(LockLost, match="forced"):
                async with held:
                    await other.force_release(name, hold=number)
                    await asyncio.Event().wait()
            kept.check()


def test_reserved_names_are_denied(client: Client) -> None:
    with pytest.raises(Denied, match="reserved"):
        client.lock("redisson_lock__channel").acquire()
    with pytest.raises(Denied, match="reserved"):
        client.semaphore("redisson_lock__channel", permits=1).acquire()


def test_confirmed_release(client: Client, other: Client, name: str) -> None:
    with client.lock(name, confirm=True, confirm_timeout=20):
        pass
    assert other.lock(name).acquire(blocking=False)


def test_hold_is_released_once(client: Client, other: Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    held = lock.held
    held.release()
    with other.lock(name, timeout=5) as later:
        with pytest.raises(NotHeld):
            held.release()
        later.check()


def test_decorated_function_excludes_others(client: Client, other: Client, name: str) -> None:
    @client.synchronized(name, timeout=5)
    def work() -> bool:
        return other.lock(name).acquire(blocking=False)

    assert not work()
    assert other.lock(name).acquire(timeout=5)


async def test_tasks_exclude_each_other(system: System, name: str) -> None:
    inside = 0

    async def work(client: aio.Client) -> None:
        nonlocal inside
        for _ in range(5):
            async with client.lock(name) as held:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                held.check()
                inside -= 1

    async with aio.connect(system.path) as one, aio.connect(system.path) as two:
        await asyncio.gather(work(one), work(one), work(two))


async def test_loss_cancels_the_task(system: System, name: str) -> None:
    async with aio.connect(system.path) as client, aio.connect(system.path) as other:
        with pytest.raises(LockLost, match="forced"):
            async with client.lock(name):
                await other.force_release(name)
                await asyncio.Event().wait()


async def test_end_of_a_fixed_lease_cancels_the_task(system: System, name: str) -> None:
    async with aio.connect(system.path) as client:
        with pytest.raises(LockLost, match="expired"):
            async with client.lock(name, lease=0.2):
                system.advance(0.2)
                await asyncio.Event().wait()


async def test_cancelled_wait_leaves_no_waiter(system: System, name: str) -> None:
    async with aio.connect(system.path) as client, aio.connect(system.path) as other, client.lock(name):
        task = asyncio.create_task(other.lock(name).acquire())
        while not (info := await client.info(name)) or not info.waiting:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await other.ping() == "ok"
        info = await client.info(name)
        assert info is not None
        assert info.waiting == 0
