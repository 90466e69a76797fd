"""The client for threads when the sidecar is killed, restarted or stopped."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from types import FrameType
from typing import Any, TypeVar

import pytest
from fake import TIMEOUT, FakeSidecar, boottime, sockets_of_this_test
from points import points, profiled

import locksidecar
from locksidecar import (
    Client,
    ClientClosed,
    Lock,
    LockLost,
    LockTimeout,
    NotHeld,
    Unavailable,
    Unconfirmed,
    _core,
    _fork,
    _transport,
)
from locksidecar._calls import Call
from locksidecar._shared_session import SharedSession
from locksidecar._transport import Availability, Socket, Timeouts, Transport

S = 1_000_000_000

T = TypeVar("T")


class Clock:
    def __init__(self) -> None:
        self.now = boottime()

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(sidecar: FakeSidecar, client: Client) -> Clock:
    """One clock for the client and the sidecar. It moves only when the test sets it."""
    clock = Clock()
    client.close()
    client.__init__(client.path)  # type: ignore[misc]
    client._clock = sidecar.clock = clock
    return clock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def no_reconnect_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls do not wait for a sidecar to listen again."""
    monkeypatch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, reconnect=0.0))
    monkeypatch.setattr(Timeouts, "for_acquire", lambda timeout: Timeouts(float("inf") if timeout is None else timeout))


def running_releasers() -> list[SharedSession]:
    """The sessions of this test whose releaser runs."""
    while True:
        try:
            shared = [thing for thing in _fork._registered if isinstance(thing, SharedSession)]
            break
        except RuntimeError:  # a thread has made a client meanwhile
            continue
    return [s for s in shared if s._releaser_running and s.session.path in sockets_of_this_test]


def join_releasers() -> None:
    end = time.monotonic() + TIMEOUT
    while running_releasers():
        assert time.monotonic() < end
        os.sched_yield()


def wait_free(sidecar: FakeSidecar, name: str) -> None:
    sidecar.wait_for(lambda: not sidecar.holder(name))


# --- The sidecar comes back ---


def test_lock_stays_held_over_a_restart(sidecar: FakeSidecar, client: Client) -> None:
    with client.lock("n") as held:
        token, session = held.token, sidecar.holder("n")
        sidecar.restart()
        held.check()
        assert held.lost is None
        assert held.token == token
        assert sidecar.holder("n") == session
        assert not locksidecar.connect(sidecar.path).lock("n").acquire(blocking=False)
    wait_free(sidecar, "n")
    assert len(sidecar.requests("claim")) == 1
    assert not running_releasers()


def test_every_call_that_reads_a_lock_reconnects(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    held = lock.held
    reads: list[Callable[[], object]] = [
        held.check,
        lambda: held.lost,
        lambda: held.remaining,
        lambda: held.deadline,
        lock.locked,
        client.ping,
        held.release,
    ]
    for n, read in enumerate(reads, 1):
        sidecar.restart()
        read()
        assert len(sidecar.requests("claim")) == n
    wait_free(sidecar, "n")


def test_waiters_keep_their_order_over_restarts(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    other = locksidecar.connect(sidecar.path)
    holder = other.lock("n")
    holder.acquire()
    order: list[int] = []

    def wait(i: int) -> None:
        with client.lock("n"):
            order.append(i)

    waits = []
    for i in range(5):
        waits.append(pool.submit(wait, i))
        sidecar.wait_for(lambda: sidecar.waiting("n") == len(waits))
    for _ in range(3):
        sidecar.restart()
        sidecar.wait_for(lambda: sidecar.waiting("n") == 5)
    holder.release()
    for done in waits:
        done.result(TIMEOUT)
    assert order == list(range(5))


def test_acquire_is_sent_again_with_the_rest_of_its_timeout(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    other = locksidecar.connect(sidecar.path)
    other.lock("n").acquire()
    begun = time.monotonic()
    wait = pool.submit(client.lock("n", timeout=60).acquire)
    sidecar.wait_for(lambda: sidecar.waiting("n"))
    passed_ms = math.ceil((time.monotonic() - begun) * 1000)
    sidecar.restart()
    sidecar.wait_for(lambda: sidecar.waiting("n"))
    first, second = [m["wait_ms"] for m in sidecar.requests("acquire") if "wait_ms" in m]
    assert 60_000 - passed_ms <= first <= 60_000
    assert 0 < second <= first
    other.close()
    assert wait.result(TIMEOUT)


def test_calls_in_flight_are_completed_after_a_restart(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    sidecar.silent = True
    acquire = pool.submit(client.lock("n").acquire)
    info, page, ping = pool.submit(client.info, "m"), pool.submit(client.list), pool.submit(client.ping)
    ops = ("acquire", "info", "list")
    sidecar.wait_for(lambda: all(sidecar.requests(op) for op in ops) and len(sidecar.requests("ping")) == 2)
    sidecar.silent = False
    sidecar.restart()
    assert acquire.result(TIMEOUT) is True
    assert info.result(TIMEOUT) is None
    assert ping.result(TIMEOUT) == "ok"
    assert {row.name for row in page.result(TIMEOUT)} <= {"n"}


def test_force_release_in_flight_raises_unavailable(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    sidecar.silent = True
    call = pool.submit(client.force_release, "n")
    sidecar.wait_for(lambda: sidecar.requests("force_release"))
    sidecar.silent = False
    sidecar.restart()
    with pytest.raises(Unavailable, match="may have been carried out") as e:
        call.result(TIMEOUT)
    assert e.value.may_have_happened
    assert client.ping() == "ok"


def test_acquire_waits_for_a_sidecar_that_is_restarting(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    """An acquire that does not wait for the lock waits for the sidecar, too."""
    sidecar.stop_listening()
    sidecar.restart()
    acquires = [pool.submit(client.lock(f"n{i}", timeout=t).acquire) for i, t in enumerate((None, 0, 0.001, 5))]
    shared = client._shared
    assert shared is not None
    while len(shared._waiting) < 4:
        os.sched_yield()
    sidecar.listen()
    assert [a.result(TIMEOUT) for a in acquires] == [True] * 4


def test_leader_uses_the_connection_that_another_thread_made(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("mine")
    lock.acquire()
    other = locksidecar.connect(sidecar.path)
    other.lock("n").acquire()
    wait = pool.submit(client.lock("n").acquire)
    sidecar.wait_for(lambda: sidecar.waiting("n"))
    # After its first attempt the leader does not connect for a long time.
    monkeypatch.setattr(Transport, "next_backoff", lambda _: 3600.0)
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()
    shared = client._shared
    assert shared is not None
    while shared._next_attempt < time.monotonic() + 1800:
        os.sched_yield()
    sidecar.listen()
    lock.held.check()
    sidecar.wait_for(lambda: sidecar.waiting("n"))
    other.close()
    assert wait.result(TIMEOUT)


def test_loss_during_a_restart_is_reported(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    with sidecar._lock_all:
        sidecar.restart()
        sidecar.lose("n", "forced")
    with pytest.raises(LockLost, match="forced"):
        lock.held.check()


# --- Deadlines ---


def test_deadline_that_passed_during_a_restart_is_extended(sidecar: FakeSidecar, client: Client, clock: Clock) -> None:
    """The sidecar renews for a living process, even if the process does nothing."""
    with client.lock("n") as held:
        for read in (held.check, lambda: held.lost, lambda: held.remaining):
            sidecar.restart()
            clock.now += 100 * S
            read()
            assert held.remaining == 30
        sidecar.restart()
        clock.now += 100 * S
    wait_free(sidecar, "n")


def test_hold_expires_at_its_deadline_if_no_sidecar_listens(sidecar: FakeSidecar, client: Client, clock: Clock) -> None:
    with pytest.raises(LockLost, match="expired"), client.lock("n") as held:
        sidecar.stop_listening()
        sidecar.restart()
        clock.now += 30 * S - 1
        held.check()
        clock.now += 1
        assert held.lost == "expired"
        sidecar.listen()
        held.check()  # the hold was lost, and stays lost
    wait_free(sidecar, "n")


def test_fixed_lease_is_not_extended_by_a_restart(sidecar: FakeSidecar, client: Client, clock: Clock) -> None:
    with pytest.raises(LockLost, match="expired"), client.lock("n", lease=10) as held:
        sidecar.restart()
        clock.now += 10 * S - 1
        held.check()
        clock.now += 1
        held.check()


def test_check_does_not_block_on_a_sidecar_that_does_not_answer(
    sidecar: FakeSidecar, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("n")
    lock.acquire()
    monkeypatch.setattr(
        "locksidecar._shared_session.NO_WAIT", Timeouts(grace=0.02, no_server=0.0, reconnect=0.0, started=0.0)
    )
    sidecar.silent = True
    sidecar.restart()
    lock.held.check()
    clock.now += 30 * S
    with pytest.raises(LockLost, match="expired"):
        lock.held.check()
    sidecar.answer_all()
    assert client.ping() == "ok"
    wait_free(sidecar, "n")


# --- The sidecar has lost its state ---


def test_locks_of_a_lost_session_stay_valid_until_their_deadlines(
    sidecar: FakeSidecar, client: Client, clock: Clock
) -> None:
    a, b = client.lock("a"), client.lock("b")
    a.acquire()
    b.acquire()
    sidecar.restart_without_state()
    a.held.check()
    with client.lock("c") as later:  # its hold has the number of the old hold of a
        a.release()
        clock.now += 30 * S - 1
        b.held.check()
        assert sidecar.holder("c")
        later.check()
        clock.now += 1
        sidecar.extend_leases(clock.now + 30 * S)
        later.check()
        with pytest.raises(LockLost, match="expired"):
            b.release()
    wait_free(sidecar, "c")
    assert len(sidecar.requests("release")) == 1


# --- The sidecar does not come back ---


def test_timeouts_count_from_the_start_of_the_call_or_from_the_disconnect() -> None:
    transport = Transport(_core.Session("/none"), boottime)
    transport._since = 50.0

    def ends(timeouts: Timeouts) -> float:
        return transport.expires_at(timeouts)

    assert ends(Timeouts(started=100.0)) == 102
    assert ends(Timeouts(no_server=0.5, started=100.0)) == 100.5
    transport._availability = Availability.AWAY
    assert ends(Timeouts(started=100.0)) == 110
    transport._since = 105.0
    assert ends(Timeouts(started=100.0)) == 115
    assert ends(Timeouts(float("inf"), started=100.0)) == 115
    transport._availability = Availability.SERVING
    assert ends(Timeouts(float("inf"), started=100.0)) == float("inf")
    assert ends(Timeouts(30, started=100.0)) == 135
    assert ends(Timeouts(1, started=100.0)) == 110


@pytest.mark.parametrize(
    ("timeout", "no_server", "reconnect"), [(None, 2, 10), (0, 0, 2), (1, 1, 2), (5, 2, 5), (60, 2, 10)]
)
def test_acquire_waits_for_a_sidecar_within_its_timeout(
    timeout: float | None, no_server: float, reconnect: float
) -> None:
    timeouts = Timeouts.for_acquire(timeout)
    assert (timeouts.no_server, timeouts.reconnect) == (no_server, reconnect)


@pytest.mark.usefixtures("no_reconnect_wait")
def test_calls_fail_if_no_sidecar_comes_back(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    other = locksidecar.connect(sidecar.path)
    other.lock("n").acquire()
    waits = [pool.submit(client.lock("n").acquire) for _ in range(3)]
    sidecar.wait_for(lambda: sidecar.waiting("n") == 3)
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()
    for wait in waits:
        with pytest.raises(Unavailable, match="no socket") as e:
            wait.result(TIMEOUT)
        assert e.value.may_have_happened
    with pytest.raises(Unavailable, match="This ping is given up") as e:
        client.ping()
    assert not e.value.may_have_happened
    sidecar.listen()
    join_releasers()  # without another use of the client
    assert client.ping() == "ok"
    assert not sidecar.waiting("n")


@pytest.mark.usefixtures("no_reconnect_wait")
def test_grant_to_an_expired_acquire_is_released(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    client.ping()
    sidecar.silent = True
    wait = pool.submit(client.lock("n").acquire)
    sidecar.wait_for(lambda: sidecar.requests("acquire"))
    shared = client._shared
    assert shared is not None
    with shared.mutex, sidecar._lock_all:  # the answer is not read
        (session,) = sidecar.sessions.values()
        sidecar._on_acquire(session, sidecar.requests("acquire")[-1])
        shared.session.on_disconnected(boottime())
        sidecar.silent = False
        sidecar.stop_listening()
        sidecar.restart()
    with pytest.raises(Unavailable):
        wait.result(TIMEOUT)
    assert sidecar.holder("n")
    sidecar.listen()
    wait_free(sidecar, "n")
    join_releasers()


# --- Releases without a connection ---


def test_release_without_a_connection_is_delivered_later(sidecar: FakeSidecar, client: Client) -> None:
    locks = [client.lock(f"n{i}") for i in range(3)]
    for lock in locks:
        lock.acquire()
    sidecar.stop_listening()
    sidecar.restart()
    for lock in locks[:2]:
        lock.release()
    assert len(running_releasers()) == 1
    with pytest.raises(NotHeld):
        locks[0].release()
    sidecar.listen()
    wait_free(sidecar, "n0")
    wait_free(sidecar, "n1")
    join_releasers()
    assert sidecar.holder("n2")
    assert client.lock("n0").acquire(blocking=False)


def test_release_of_a_lost_lock_without_a_connection_is_delivered_later(
    sidecar: FakeSidecar, client: Client, clock: Clock
) -> None:
    lock = client.lock("n")
    lock.acquire()
    sidecar.stop_listening()
    sidecar.restart()
    clock.now += 30 * S
    with pytest.raises(LockLost, match="expired"):
        lock.release()
    sidecar.listen()
    wait_free(sidecar, "n")
    join_releasers()


def test_release_that_was_sent_but_not_read_is_delivered_later(sidecar: FakeSidecar, client: Client) -> None:
    lock, other = client.lock("n"), client.lock("other")
    lock.acquire()
    other.acquire()
    with sidecar._lock_all:
        lock.release()
        sidecar.restart()
    assert sidecar.holder("n")
    other.held.check()
    wait_free(sidecar, "n")
    assert sidecar.holder("other")


def test_check_without_a_sidecar_starts_the_delivery_of_an_unread_release(sidecar: FakeSidecar, client: Client) -> None:
    lock, other = client.lock("n"), client.lock("other")
    lock.acquire()
    other.acquire()
    with sidecar._lock_all:
        lock.release()
        sidecar.stop_listening()
        sidecar.restart()
    other.held.check()
    sidecar.listen()
    wait_free(sidecar, "n")
    join_releasers()


def test_no_background_thread_runs_without_a_disconnect(sidecar: FakeSidecar, client: Client) -> None:
    before = threading.active_count()
    started: list[str] = []
    threading.setprofile(lambda *_: started.append(threading.current_thread().name))
    try:
        for _ in range(20):
            with client.lock("n") as held:
                held.check()
        client.close()
    finally:
        threading.setprofile(None)
    assert threading.active_count() == before
    assert not started


# --- Close ---


def test_close_sends_bye(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    client.close()
    assert not sidecar.holder("n")  # the sidecar has read bye
    assert len(sidecar.requests("bye")) == 1
    assert not running_releasers()


def test_close_resumes_the_session_to_send_bye(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    sidecar.restart()
    client.close()
    assert not sidecar.holder("n")
    assert sidecar.requests("claim") == []
    assert not running_releasers()


def test_close_without_a_connection_is_delivered_later(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    lock = client.lock("n")
    lock.acquire()
    sidecar.stop_listening()
    sidecar.restart()
    client.close()
    with pytest.raises(LockLost, match="closed"):
        lock.release()
    assert sidecar.holder("n")
    sidecar.listen()
    wait_free(sidecar, "n")
    join_releasers()
    sidecar.wait_for(lambda: not sidecar.connections())


def test_close_during_the_reconnect_of_a_release_is_delivered(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = locksidecar.connect(sidecar.path)
    lock, other = client.lock("n"), client.lock("other")
    lock.acquire()
    other.acquire()
    sidecar.stop_listening()
    sidecar.restart()
    call = SharedSession.execute

    def closed_before(shared: SharedSession, submitted: Call[Any], timeouts: Timeouts) -> bool:
        if shared is client._shared:  # and not that of a client of an earlier test
            monkeypatch.undo()
            client.close()
        return call(shared, submitted, timeouts)

    monkeypatch.setattr(SharedSession, "execute", closed_before)
    lock.release()
    sidecar.listen()
    wait_free(sidecar, "other")
    join_releasers()
    sidecar.wait_for(lambda: not sidecar.connections())


def test_close_does_not_wait_long_for_an_answer(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locksidecar._shared_session.BYE_WAIT", 0.01)
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    sidecar.silent = True
    client.close()
    sidecar.silent = False
    sidecar.restart()  # bye was not read
    wait_free(sidecar, "n")
    join_releasers()


def test_close_fails_waiters_and_starts_no_thread_without_holds(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    other = locksidecar.connect(sidecar.path)
    other.lock("n").acquire()
    client = locksidecar.connect(sidecar.path)
    wait = pool.submit(client.lock("n").acquire)
    sidecar.wait_for(lambda: sidecar.waiting("n"))
    client.close()
    with pytest.raises(ClientClosed):
        wait.result(TIMEOUT)
    assert not sidecar.waiting("n")
    idle = locksidecar.connect(sidecar.path)
    sidecar.stop_listening()
    sidecar.restart()
    idle.close()
    assert not running_releasers()


def test_close_of_a_session_without_a_ticket_sends_no_bye(sidecar: FakeSidecar) -> None:
    sidecar.resumable = False
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    client.close()
    wait_free(sidecar, "n")
    assert sidecar.requests("bye") == []
    assert not running_releasers()


# --- Forks ---


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("with_releaser", [False, True])
def test_child_of_a_disconnected_process_holds_nothing(
    sidecar: FakeSidecar, client: Client, with_releaser: bool
) -> None:
    lock, other = client.lock("n"), client.lock("other")
    lock.acquire()
    other.acquire()
    held = lock.held
    sidecar.stop_listening()
    sidecar.restart()
    held.check()
    if with_releaser:
        other.release()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.alarm(int(TIMEOUT))
            with pytest.raises(NotHeld, match="parent process"):
                held.check()
            with pytest.raises(Unavailable), client.lock("m", timeout=0):
                pass
            assert not running_releasers()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    sidecar.listen()
    held.check()
    assert len(sidecar.requests("claim")) == 1
    lock.release()
    wait_free(sidecar, "n")
    join_releasers()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_child_starts_its_own_session(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    sidecar.restart()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.alarm(int(TIMEOUT))
            assert not client.lock("n", timeout=0).acquire()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "resume" not in sidecar.requests("hello")[-1]
    lock.held.check()


# --- Everything at once ---


@pytest.mark.parametrize("kind", ["restart", "stop_listening"])
def test_threads_exclude_each_other_over_many_disconnects(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor, kind: str
) -> None:
    counter = disconnects = 0
    tokens: list[int] = []
    finished = threading.Event()

    def add(seed: int) -> None:
        nonlocal counter
        rng = random.Random(seed)
        for i in itertools.count():
            if i >= 40 and disconnects > 3:
                break
            match rng.randrange(6):
                case 0:
                    assert client.ping() == "ok"
                case 1:
                    with contextlib.suppress(LockTimeout), client.lock("n", timeout=0.001) as held:
                        tokens.append(held.token)
                case 2:
                    with client.rlock(f"{seed}-{i}") as outer, client.rlock(f"{seed}-{i}") as inner:
                        assert outer.token == inner.token
                case _:
                    with client.lock("n") as held:
                        tokens.append(held.token)
                        value = counter
                        held.check()
                        counter = value + 1

    def disconnect() -> None:
        nonlocal disconnects
        rng = random.Random(0)
        while True:
            wanted = len(sidecar.received) + rng.randrange(60)
            with sidecar._changed:
                while len(sidecar.received) < wanted and not finished.is_set():
                    assert sidecar._changed.wait(TIMEOUT)
            if finished.is_set():
                return
            with sidecar._lock_all:
                if kind == "stop_listening":
                    sidecar.stop_listening()
                sidecar.restart()
            if kind == "stop_listening":
                sidecar.listen()
            disconnects += 1

    disconnecting = pool.submit(disconnect)
    workers = [pool.submit(add, seed) for seed in range(7)]
    try:
        for done in workers:
            done.result(TIMEOUT)
    finally:
        finished.set()
        with sidecar._changed:
            sidecar._changed.notify_all()
    disconnecting.result(TIMEOUT)
    assert tokens == sorted(set(tokens))
    assert counter <= len(tokens)
    assert client.ping() == "ok"
    wait_free(sidecar, "n")
    assert not any(sidecar.holder(name) for name in list(sidecar._locks))
    join_releasers()


# --- Interrupts ---


@pytest.mark.parametrize("interrupt", [TimeoutError("of a signal's handler"), OSError(errno.ENOMEM, "no memory")])
@pytest.mark.parametrize("function", ["recv", "send"])
def test_os_error_other_than_a_disconnect_releases_no_lock(
    sidecar: FakeSidecar, client: Client, function: str, interrupt: OSError
) -> None:
    within = {"recv": Transport.receive, "send": Transport.flush}[function].__code__

    def profile(frame: FrameType, event: str, called: object) -> None:
        if frame.f_code is within and event == "c_return" and getattr(called, "__name__", "") == "extend":
            sys.setprofile(None)
            raise interrupt

    with client.lock("n") as held:
        with profiled(profile), pytest.raises(OSError, match=str(interrupt.args[-1])):
            client.ping()
        assert client.ping() == "ok"
        held.check()
        assert len(sidecar.requests("hello")) == 1
    wait_free(sidecar, "n")


def test_os_error_of_a_signal_handler_is_not_a_connect_error(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial = _transport.dial

    def interrupted(path: str) -> Socket:
        if path != sidecar.path:  # a client of an earlier test
            return dial(path)
        monkeypatch.undo()
        raise TimeoutError("of a signal's handler")

    monkeypatch.setattr(_transport, "dial", interrupted)
    with Client(sidecar.path) as client:
        with pytest.raises(TimeoutError, match="signal"):
            client.ping()
        assert client.ping() == "ok"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a generator's close()
@pytest.mark.parametrize("confirm", [False, True])
@pytest.mark.parametrize("listening", [True, False])
def test_with_block_interrupted_at_any_point_over_a_restart_leaves_no_lock_held(
    sidecar: FakeSidecar, client: Client, listening: bool, confirm: bool
) -> None:
    class Interrupt(Exception):
        pass

    last = 0

    def interrupt_at(point: int) -> Callable[[FrameType, str, object], None]:
        def profile(frame: FrameType, event: str, _: object) -> None:
            nonlocal last
            ours = os.path.dirname(frame.f_code.co_filename) == os.path.dirname(_transport.__file__)
            if not ours or event not in ("call", "c_return"):
                return
            if event == "call" and frame.f_code is Lock.__exit__.__code__:
                return
            last += 1
            if last == point:
                sys.setprofile(None)
                raise Interrupt

        return profile

    lock = client.lock("n", confirm=confirm, confirm_timeout=0 if confirm and not listening else None)
    for point in points(3, listening + confirm):
        last = 0
        lock.acquire()
        lock.held._scoped = True  # as by __enter__
        with sidecar._lock_all:
            if not listening:
                sidecar.stop_listening()
            sidecar.restart()
        with contextlib.suppress(Interrupt, Unconfirmed), profiled(interrupt_at(point)):
            lock.__exit__(None, None, None)
        if not listening:
            sidecar.listen()
        wait_free(sidecar, "n")
        assert not list(lock._handles), point
        if last < point:
            break
    assert point > 50
    join_releasers()


def test_interrupted_handshake_is_repeated(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the claims are sent, the handshake can be repeated without harm."""
    lock = client.lock("n")
    lock.acquire()
    shared = client._shared
    assert shared is not None
    claim = _core.Session._send_claims
    interrupts = iter([True, False])

    def interrupted(session: _core.Session) -> None:
        if session is shared.session and next(interrupts):
            raise KeyboardInterrupt
        claim(session)

    monkeypatch.setattr(_core.Session, "_send_claims", interrupted)
    sidecar.restart()
    with pytest.raises(KeyboardInterrupt):
        lock.held.check()
    lock.held.check()
    assert shared.session.failure is None
    lock.release()
    wait_free(sidecar, "n")


@pytest.mark.parametrize("use", ["check", "release"])
def test_socket_that_the_interpreter_closed_is_a_disconnect(sidecar: FakeSidecar, client: Client, use: str) -> None:
    lock = client.lock("n")
    lock.acquire()
    shared = client._shared
    assert shared is not None
    assert shared.transport.sock is not None
    shared.transport.sock.close()
    with contextlib.suppress(LockLost):  # the sidecar ends the session of a connection that was closed
        lock.held.check() if use == "check" else lock.release()
    assert client.ping() == "ok"
    if use == "check":
        with contextlib.suppress(LockLost):
            lock.release()
    wait_free(sidecar, "n")
    join_releasers()


def test_releaser_survives_an_exception(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock = client.lock("n")
    lock.acquire()
    shared = client._shared
    assert shared is not None
    outstanding, failures = shared._outstanding_request, [OSError("the first"), ValueError("the second")]
    failed_twice = threading.Event()

    def fail_twice() -> object:
        if failures:
            failure = failures.pop(0)
            if not failures:
                failed_twice.set()
            raise failure
        return outstanding()

    monkeypatch.setattr(shared, "_outstanding_request", fail_twice)
    sidecar.stop_listening()
    sidecar.restart()
    lock.release()  # no sidecar reads it, so the releaser runs
    assert failed_twice.wait(TIMEOUT)
    sidecar.listen()
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert "a release is not delivered yet" in caplog.text
    assert "the first" in caplog.text
    assert "the second" not in caplog.text
