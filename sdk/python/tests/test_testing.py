"""locksidecar.testing: what a test can do to the sidecar in memory."""

from __future__ import annotations

import asyncio
import os
import threading

import msgpack
import pytest

import locksidecar
from locksidecar import LockLost, LockTimeout, Unavailable, testing
from locksidecar._fake import Connection, Message, Table


def test_program_finds_it_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.Sidecar() as sidecar:
        monkeypatch.setenv("LOCKSIDECAR_SOCKET", sidecar.path)
        with locksidecar.connect() as client, client.lock("n"):
            assert sidecar.is_held("n")
    assert not os.path.exists(sidecar.path)


def test_socket_is_made_where_the_test_wants_it(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "s")
    with testing.Sidecar(path) as sidecar, sidecar.connect() as client:
        assert client.path == path
    assert not os.path.exists(path)


def test_socket_with_a_relative_path_has_its_clock(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with testing.Sidecar("s") as sidecar:
        sidecar.advance(61)
        with sidecar.connect() as client, client.lock("n"):
            assert sidecar.is_held("n")


def test_advance_ends_leases_in_their_order() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        locks = [client.lock(f"n{i}", lease=1000 * (i + 1)) for i in range(3)]
        for lock in locks:
            lock.acquire()
        helds = [lock.held for lock in locks]
        sidecar.advance(990)
        assert [h.lost for h in helds] == [None] * 3
        assert helds[1].remaining == pytest.approx(1010, abs=100)
        sidecar.advance(1020)
        assert [h.lost for h in helds] == ["expired", "expired", None]
        assert [sidecar.is_held(f"n{i}") for i in range(3)] == [False, False, True]


def test_advance_renews_what_has_no_fixed_lease() -> None:
    with testing.Sidecar(lease=500) as sidecar, sidecar.connect() as client, client.lock("n") as held:
        sidecar.advance(3600)
        held.check()
        assert held.remaining > 300


def test_advance_ends_waits() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client, sidecar.held_elsewhere("n"):
        got: list[bool] = []
        thread = threading.Thread(target=lambda: got.append(client.lock("n").acquire(timeout=3600)))
        thread.start()
        sidecar.wait_for_waiters("n")
        sidecar.advance(3601)
        thread.join()
        assert got == [False]
        with pytest.raises(ValueError, match="moved back"):
            sidecar.advance(-1)


def test_client_of_an_advanced_sidecar_has_its_clock() -> None:
    with testing.Sidecar() as sidecar:
        sidecar.advance(1_000_000)
        with sidecar.connect() as client, client.lock("n") as held:
            assert 0 < held.remaining <= 30


@pytest.mark.parametrize("reason", ["expired", "deleted", "stolen", "forced", "max_hold", "forgotten"])
def test_loss_on_demand(reason: str) -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        with pytest.raises(LockLost) as raised, client.lock("n") as held:
            sidecar.lose("n", reason)
            held.check()
        assert raised.value.reason == reason
        with pytest.raises(ValueError, match="does not send the reason 'unknown'"):
            sidecar.lose("n", "unknown")


def test_lost_lock_passes_to_the_next_waiter() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client, sidecar.connect() as other:
        tokens: list[int] = []

        def wait() -> None:
            with other.lock("n") as held:
                tokens.append(held.token)

        lock = client.lock("n")
        lock.acquire()
        thread = threading.Thread(target=wait)
        thread.start()
        sidecar.wait_for_waiters("n")
        sidecar.lose("n")
        thread.join()
        assert tokens[0] > lock.held.token


def test_lock_is_held_elsewhere_after_a_release_whose_answer_no_client_awaited() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        for _ in range(100):
            with client.lock("n"):
                pass
            with sidecar.held_elsewhere("n"):
                pass


def test_lock_held_elsewhere() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        with sidecar.held_elsewhere("n") as token:
            assert sidecar.is_held("n")
            assert client.info("n") is None
            with pytest.raises(LockTimeout), client.lock("n", timeout=0):
                pass
            thread = threading.Thread(target=lambda: client.lock("n").acquire())
            thread.start()
            sidecar.wait_for_waiters("n")
            row = client.info("n")
            assert row is not None
            assert (row.state, row.waiting) == ("remote", 1)
        thread.join()
        row = client.info("n")
        assert row is not None
        assert row.token > token


def test_unreachable_redis() -> None:
    with testing.Sidecar(lease=1000) as sidecar, sidecar.connect() as client:
        lock = client.lock("n")
        lock.acquire()
        with sidecar.redis_unreachable():
            assert client.ping() != "ok"
            with pytest.raises(Unavailable, match="Redis cannot be reached"):
                client.lock("free").acquire(blocking=False)
            with pytest.raises(Unavailable, match="Redis cannot be reached"):
                client.lock("free").acquire(timeout=0.01)
            sidecar.advance(900)
            lock.held.check()
            sidecar.advance(200)
            assert lock.held.lost == "expired"
            thread = threading.Thread(target=lambda: client.lock("free").acquire())
            thread.start()
            sidecar.wait_for_waiters("free")
        thread.join()
        assert sidecar.is_held("free")
        assert client.ping() == "ok"


def test_restart_keeps_locks_and_waits() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client, sidecar.connect() as other:
        with client.lock("n") as held:
            thread = threading.Thread(target=lambda: other.lock("n").acquire())
            thread.start()
            sidecar.wait_for_waiters("n")
            sidecar.restart()
            held.check()
            sidecar.wait_for_waiters("n")
            with sidecar.stopped():
                held.check()
            held.check()
        thread.join()


def test_restart_without_state_leaves_locks_until_their_deadlines() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        lock = client.lock("n")
        lock.acquire()
        sidecar.restart_without_state()
        lock.held.check()
        sidecar.advance(31)
        assert lock.held.lost == "expired"


def test_semaphore() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client, sidecar.connect() as other:
        first = client.semaphore("n", permits=5).acquire(2)
        second = other.semaphore("n", permits=5).acquire()
        assert (sidecar.is_held("n"), sidecar.permits_held("n")) == (True, 3)
        with sidecar.held_elsewhere("n", permits=2) as token:
            assert token > second.token
            assert sidecar.permits_held("n") == 5
            assert client.semaphore("n", permits=5).acquire(blocking=False) is None
            thread = threading.Thread(target=lambda: client.semaphore("n", permits=5).acquire(2).release())
            thread.start()
            sidecar.wait_for_waiters("n")
        thread.join()
        sidecar.lose("n", "stolen", token=first.token)
        assert (first.lost, second.lost) == ("stolen", None)
        sidecar.lose("n")
        assert second.lost == "deleted"
        assert not sidecar.is_held("n")


def test_permits_held_elsewhere() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        semaphore = client.semaphore("n", permits=2)
        with sidecar.held_elsewhere("n", permits=2), sidecar.held_elsewhere("lock"):
            assert client.info("n") is None
            for name in "n", "lock":
                with pytest.raises(LockTimeout):
                    client.semaphore(name, permits=2).acquire(timeout=0)
            thread = threading.Thread(target=lambda: semaphore.acquire().release())
            thread.start()
            sidecar.wait_for_waiters("n")
            row = client.info("n")
            assert row is not None
            assert (row.state, row.kind, row.held, row.of, row.waiters[0].permits) == ("remote", "permits", 0, 2, 1)
        thread.join()


def test_unreachable_redis_grants_only_permits_that_are_handed_on() -> None:
    with testing.Sidecar(lease=1000) as sidecar, sidecar.connect() as client:
        semaphore = client.semaphore("n", permits=5)
        first, second = semaphore.acquire(2), semaphore.acquire()
        granted: list[int] = []

        def wait(permits: int) -> None:
            semaphore.acquire(permits)
            granted.append(permits)

        threads = [threading.Thread(target=wait, args=(permits,)) for permits in (2, 3)]
        with sidecar.redis_unreachable():
            with pytest.raises(Unavailable, match="Redis cannot be reached"):
                semaphore.acquire(timeout=0)
            for n, thread in enumerate(threads, 1):
                thread.start()
                sidecar.wait_for_waiters("n", n)
            first.release()
            threads[0].join()
            second.release()
            assert client.ping() != "ok"  # the release was read before it
            assert (granted, sidecar.waiting("n")) == ([2], 1)
        threads[1].join()
        assert granted == [2, 3]


def test_restart_keeps_permits_and_waits() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        semaphore = client.semaphore("n", permits=2)
        with semaphore.acquire() as first, semaphore.acquire() as second:
            thread = threading.Thread(target=lambda: semaphore.acquire(2).release())
            thread.start()
            sidecar.wait_for_waiters("n")
            sidecar.restart()
            first.check()
            second.check()
            assert sidecar.permits_held("n") == 2
            sidecar.wait_for_waiters("n")
        thread.join()


async def test_tasks() -> None:
    with testing.Sidecar() as sidecar:
        async with sidecar.aconnect() as client:
            with pytest.raises(LockLost, match="stolen"):
                async with client.lock("n"):
                    sidecar.lose("n", "stolen")
                    await asyncio.Event().wait()


def test_forked_child_does_not_end_it() -> None:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        pid = os.fork()
        if pid == 0:
            with client.lock("n"):
                sidecar.close()
                os._exit(0 if client.ping() == "ok" else 1)
        assert os.waitpid(pid, 0)[1] == 0
        with client.lock("n", timeout=5):
            pass


def test_client_that_is_claiming_may_resume_over_a_newer_connection() -> None:
    """As the daemon permits: it may not have read yet that the connection before has ended."""
    table = Table()
    answers: list[Message] = []

    def connect(resume: str) -> Connection:
        connection = table.connect(lambda data: answers.append(msgpack.unpackb(data[4:])), lambda: None)
        table.handle(connection, {"op": "hello", "id": 1, "v": 1, "resumable": True, "resume": resume})
        return connection

    table.handle(connect(""), {"op": "acquire", "id": 2, "name": "n"})
    ticket = answers[0]["ticket"]
    table.restart()
    before = connect(ticket)
    newer = connect(ticket)
    assert answers[-1]["resumed"]
    assert answers[-2]["err"]["code"] == "unavailable"
    table.on_disconnected(before)
    table.handle(newer, {"op": "bye", "id": 3})
    assert not table.is_held("n")
