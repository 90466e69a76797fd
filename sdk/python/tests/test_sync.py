"""The client for threads against a fake sidecar on a real socket: one thread at a time."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from types import FrameType

import pytest
from fake import TIMEOUT, FakeSidecar, boottime
from points import profiled
from test_restart import join_releasers

import locksidecar
from locksidecar import (
    BadRequest,
    Client,
    ClientClosed,
    Deadlock,
    Denied,
    LimitExceeded,
    Lock,
    LockLost,
    LockTimeout,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unsupported,
    _shared_session,
    _transport,
    aio,
)
from locksidecar._calls import acquire_call
from locksidecar._transport import Timeouts

S = 1_000_000_000


@pytest.fixture
def other(sidecar: FakeSidecar) -> Client:
    return Client(sidecar.path)


def wait_free(sidecar: FakeSidecar, name: str) -> None:
    sidecar.wait_for(lambda: not sidecar.holder(name))


# --- Acquire and release ---


def test_with_holds_and_releases(sidecar: FakeSidecar, client: Client) -> None:
    with client.lock("n", timeout=2) as held:
        assert sidecar.holder("n")
        assert held.name == "n"
        assert held.token >= 1_700_000_000_000_000
        assert held.lost is None
        assert 0 < held.remaining <= 30
        assert 0 < held.deadline * S - boottime() <= 30 * S
        held.check()
    wait_free(sidecar, "n")
    assert held.released
    assert held.remaining == 0


def test_tokens_grow(client: Client) -> None:
    tokens = []
    for _ in range(3):
        with client.lock("n") as held:
            tokens.append(held.token)
    assert tokens == sorted(set(tokens))


def test_acquire_and_release_like_threading_lock(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    assert not lock.locked()
    assert lock.acquire() is True
    assert lock.locked()
    assert lock.token == lock.held.token
    lock.release()
    wait_free(sidecar, "n")
    assert not lock.locked()
    with pytest.raises(NotHeld, match="never acquired"):
        lock.release()
    with pytest.raises(NotHeld):
        _ = lock.held


def test_options_are_sent(sidecar: FakeSidecar, client: Client) -> None:
    with client.lock("n", timeout=3, lease=4.5, max_hold=5, crash_delay=6, keep=7, fair=True):
        pass
    with client.rlock("n", fair=True):
        pass
    request, reentrant = sidecar.requests("acquire")
    assert (request["fair"], reentrant["fair"]) == (True, True)
    assert 0 < request["wait_ms"] <= 3000
    assert (request["lease_ms"], request["max_hold_ms"], request["crash_delay_ms"]) == (4500, 5000, 6000)
    assert request["keep_ms"] == 7000
    assert request["owner"] > 0
    assert request["reentrant"] is False


def test_timeout_ends_the_wait_and_the_body_does_not_run(sidecar: FakeSidecar, client: Client, other: Client) -> None:
    with other.lock("n"):
        with pytest.raises(LockTimeout, match="another owner"), client.lock("n", timeout=0.01):
            pytest.fail("the body ran without the lock")
        with pytest.raises(TimeoutError), client.lock("n", timeout=0):
            pytest.fail("the body ran without the lock")
        lock = client.lock("n", timeout=0.01)
        assert lock.acquire() is False
        assert lock.acquire(blocking=False) is False
        assert lock.acquire(timeout=0.02) is False
    assert sidecar.waiting("n") == 0


def test_acquire_checks_timeouts_like_threading(client: Client) -> None:
    lock = client.lock("n", timeout=0.01)
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(ValueError, match="timeout must be"):
        lock.acquire(timeout=-2)
    assert lock.acquire(timeout=-1)
    lock.release()


@pytest.mark.parametrize("parameter", ["timeout", "lease", "max_hold", "crash_delay", "keep"])
def test_duration_of_another_type_raises_type_error(client: Client, parameter: str) -> None:
    with pytest.raises(TypeError, match=f"{parameter} must be a number of seconds, not '2'"):
        client.lock("n", **{parameter: "2"})  # type: ignore[arg-type]


def test_timeout_of_another_type_raises_type_error(client: Client) -> None:
    lock = client.lock("n")
    with pytest.raises(TypeError, match="timeout must be a number"):
        lock.acquire(timeout="2")  # type: ignore[arg-type]
    with lock as held, pytest.raises(TypeError, match="timeout must be a number"):
        held.release(confirm=True, timeout="2")  # type: ignore[arg-type]


def test_minus_one_means_the_same_for_lock_and_acquire(sidecar: FakeSidecar, client: Client) -> None:
    with client.lock("n", timeout=-1), client.rlock("m", timeout=-1):
        assert ["wait_ms" in m for m in sidecar.requests("acquire")] == [False, False]


def test_minus_one_waits_without_limit(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n", timeout=0.01)
    lock.acquire(timeout=-1)
    assert "wait_ms" not in sidecar.requests("acquire")[0]
    lock.release()


def test_bad_names_and_durations_are_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(BadRequest):
        client.lock("")
    with pytest.raises(ValueError, match="control"):
        client.rlock("a\0")
    with pytest.raises(ValueError, match="lease must be"):
        client.lock("n", lease=-1)


def test_thread_that_waits_for_its_own_lock_gets_deadlock(client: Client) -> None:
    lock = client.lock("n")
    with lock, pytest.raises(Deadlock, match="which you hold"):
        lock.acquire()


def test_rlock_is_reentrant(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n")
    with lock as outer, lock as inner, client.rlock("n") as innermost:
        assert outer.token == inner.token == innermost.token
        inner.check()
    wait_free(sidecar, "n")
    sidecar.wait_for(lambda: len(sidecar.requests("release")) == 3)


def test_body_may_release_early(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    with lock as held:
        held.release()
        wait_free(sidecar, "n")
        with pytest.raises(NotHeld, match="released before"):
            held.release()
    with lock:
        lock.release()
    sidecar.wait_for(lambda: len(sidecar.requests("release")) == 2)


def test_condition_works_with_a_lock(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    condition = threading.Condition(lock)  # type: ignore[arg-type]

    def notify() -> None:
        with condition:
            condition.notify()

    thread = threading.Thread(target=notify)
    with condition:
        thread.start()
        assert condition.wait(TIMEOUT)
        assert lock.locked()
    thread.join()
    assert not lock.locked()
    wait_free(sidecar, "n")


def test_late_release_does_not_free_a_newer_hold(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    old = lock.held
    sidecar.lose("n", "deleted")
    lock.acquire()
    with pytest.raises(LockLost):
        old.release()
    assert sidecar.holder("n")
    lock.release()
    wait_free(sidecar, "n")


# --- Loss ---


def test_check_reads_a_lost_event(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    held = lock.held
    sidecar.lose("n", "stolen")
    with pytest.raises(LockLost, match="stolen") as e:
        held.check()
    assert (e.value.name, e.value.reason, held.lost) == ("n", "stolen", "stolen")
    assert not lock.locked()
    with pytest.raises(LockLost):
        lock.release()
    assert sidecar.requests("release") == []


def test_loss_within_the_body_is_raised_at_its_end(sidecar: FakeSidecar, client: Client) -> None:
    with pytest.raises(LockLost, match="forced"), client.lock("n"):
        sidecar.lose("n", "forced")


def test_loss_does_not_mask_the_exception_of_the_body(sidecar: FakeSidecar, client: Client) -> None:
    with pytest.raises(KeyError) as e, client.lock("n"):
        sidecar.lose("n", "forced")
        raise KeyError("the body's own")
    if sys.version_info >= (3, 11):
        assert e.value.__notes__ == ["Also: the lock 'n' was lost: an operator ended it (forced)"]


def test_hold_expires_without_a_lost_event(sidecar: FakeSidecar, client: Client) -> None:
    now = boottime()
    client._clock = sidecar.clock = lambda: now
    client._process_state().shared = None  # a new session, with this clock
    with pytest.raises(LockLost, match="expired"), client.lock("n") as held:
        now += 30 * S - 1
        held.check()
        assert held.remaining == pytest.approx(1e-9)
        now += 1
        with pytest.raises(LockLost):
            held.check()


@pytest.mark.parametrize("stopped_at", [1, 2])
def test_stopped_process_reads_lease_events_before_the_deadline_counts(
    sidecar: FakeSidecar, client: Client, stopped_at: int
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

    sidecar.clock = lambda: now
    client._clock = lambda: now
    client._process_state().shared = None
    lock = client.lock("n")
    lock.acquire()
    held = lock.held
    assert client._shared is not None
    client._shared._clock = clock
    held.check()
    assert readings > stopped_at
    readings = 0
    assert held.lost is None
    readings = 0
    assert 0 < held.remaining <= 60
    readings = 0
    lock.release()
    with pytest.raises(NotHeld):
        held.check()


def test_hold_expires_if_no_lease_event_has_arrived(sidecar: FakeSidecar, client: Client) -> None:
    now = boottime()
    client._clock = sidecar.clock = lambda: now
    client._process_state().shared = None
    lock = client.lock("n")
    lock.acquire()
    now += 30 * S
    assert lock.held.deadline == pytest.approx(now / S)
    assert lock.held.remaining == 0
    assert lock.held.lost == "expired"
    with pytest.raises(LockLost):
        lock.release()


def test_lease_event_extends_the_deadline(sidecar: FakeSidecar, client: Client) -> None:
    now = boottime()
    client._clock = sidecar.clock = lambda: now
    client._process_state().shared = None
    with client.lock("n") as held:
        sidecar.extend_leases(now + 60 * S)
        now += 50 * S
        held.check()
        assert held.remaining == pytest.approx(10)


# --- Other requests ---


def test_info_list_ping_force_release(sidecar: FakeSidecar, client: Client, other: Client) -> None:
    assert client.info("n") is None
    assert client.ping() == "ok"
    sidecar.page_size = 2
    locks = [other.lock(f"n{i}") for i in range(5)]
    for lock in locks:
        lock.acquire()
    assert [row.name for row in client.list()] == [f"n{i}" for i in range(5)]
    row = client.info("n0")
    assert row is not None
    assert (row.state, row.token, row.waiting) == ("held", locks[0].token, 0)
    client.force_release("n0")
    with pytest.raises(LockLost, match="forced"):
        locks[0].held.check()
    with pytest.raises(NotHeld, match="no session of this sidecar holds it"):
        client.force_release("n0")


@pytest.mark.parametrize(
    ("code", "error"),
    [("limit", LimitExceeded), ("denied", Denied), ("unavailable", Unavailable), ("unsupported", Unsupported)],
)
def test_refusal_raises_the_exception_of_its_code(
    sidecar: FakeSidecar, client: Client, code: str, error: type[Exception]
) -> None:
    sidecar.refuse["acquire"] = (code, "what to do about it")
    with pytest.raises(error, match="acquire 'n': what to do about it"):
        client.lock("n").acquire()


def test_unreachable_redis_raises_unavailable_and_not_false(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.refuse["acquire"] = ("unavailable", "Redis does not answer")
    lock = client.lock("n", timeout=1)
    with pytest.raises(Unavailable, match="Redis does not answer"):
        lock.acquire(timeout=1)
    with pytest.raises(Unavailable):
        lock.acquire(blocking=False)
    with pytest.raises(Unavailable), lock:
        pytest.fail("the body ran without the lock")


@pytest.mark.parametrize(("timeout", "most"), [(0, 2), (0.5, 2), (1, 2), (10, 11)])
def test_acquire_ends_soon_after_its_timeout_if_the_sidecar_is_stopped(timeout: float, most: float) -> None:
    timeouts = Timeouts.for_acquire(timeout)
    assert timeouts.answer + timeouts.grace == most


# --- Connections ---


@pytest.mark.parametrize("path", ["redis://user:secret@localhost:6379/0", "unix:///run/sock"])
def test_url_in_place_of_a_path_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (locksidecar.connect, Client, aio.Client):
        with pytest.raises(BadRequest, match="is not the path of a socket") as e:
            make(path)
        assert "secret" not in str(e.value)
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", path)
    with pytest.raises(BadRequest, match="setting redis"):
        Client()


def test_error_of_a_connect_names_no_request(
    sidecar: FakeSidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, no_server=0.02))
    with pytest.raises(Unavailable, match=r"or pass its path to connect\(\)\.$"):
        locksidecar.connect(tmp_path / "none")
    sidecar.rejection = {}
    with pytest.raises(Unavailable, match=r"is it locksidecar\?$"):
        locksidecar.connect(sidecar.path)


class Foreign:
    """A program that listens on a socket, and answers each connection with some bytes."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen()
        self.answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self.sock.accept()
        connection.recv(65536)
        connection.sendall(self.answer)
        connection.recv(65536)
        connection.close()
        self.sock.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "it sent text that begins with 'HTTP', and no frame"),
        (b"\x00\x00\x00\x00", "a frame of 0 bytes"),
        (b"\x00\x00\x00\x01\xc0", "a bad frame"),
    ],
)
def test_answer_of_another_program_asks_if_it_is_locksidecar(tmp_path: Path, answer: bytes, why: str) -> None:
    Foreign(tmp_path / "s", answer)
    with pytest.raises(
        ProtocolError, match=rf"{tmp_path}/s does not answer like a sidecar: .*Is it locksidecar\?$"
    ) as e:
        locksidecar.connect(tmp_path / "s")
    assert why in str(e.value)


def test_missing_socket_raises_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no socket .*/none.*Is locksidecar running.*LOCKSIDECAR_SOCKET"):
        Client(tmp_path / "none").lock("n", timeout=0).acquire()


def test_socket_without_a_listener_raises_unavailable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "stale"))
    with pytest.raises(ConnectionError, match="no process listens"):
        Client(tmp_path / "stale").lock("n", timeout=0).acquire()


def test_file_in_the_place_of_the_socket_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"/file is no socket\. Remove this file"):
        Client(tmp_path / "file").lock("n", timeout=0).acquire()


@pytest.mark.parametrize(
    ("mode", "gid", "hint"),
    [
        (0o660, 12345, "run it as a member of the group 12345 (the socket's mode is 0660)"),
        (0o600, 12345, "run it as the user 54321, or change the setting socket_mode of the sidecar"),
        (0o640, 7, "run it as the user 54321"),
        (0o660, 0, "set socket_group of the sidecar to a group of this process"),
        (0o660, 7, "which permits it, so a security module"),
        (0o666, 12345, "which permits it, so a security module"),
    ],
)
def test_hint_depends_on_mode_and_group_of_the_socket(mode: int, gid: int, hint: str) -> None:
    assert hint in _transport.socket_permission_hint(0o140000 | mode, 54321, gid, {7})


def test_denied_names_a_directory_that_may_not_be_searched(tmp_path: Path) -> None:
    error = _transport.connect_error(str(tmp_path / "x" / "sock"), PermissionError(errno.EACCES, "Permission denied"))
    assert isinstance(error, PermissionError)
    assert f"may not search the directory {tmp_path}/x" in str(error)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
def test_denied_is_raised_for_another_user(sidecar: FakeSidecar) -> None:
    os.chmod(sidecar.path, 0o600)
    for parent in Path(sidecar.path).parents:
        if parent != Path("/tmp") and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            Client(sidecar.path).ping()
        except Denied as e:
            os._exit(7 if "run it as the user root" in str(e) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_sidecar_out_of_descriptors_raises_limit_exceeded(sidecar: FakeSidecar) -> None:
    """It sends the error before it reads hello."""
    sidecar.rejection = {"err": {"code": "limit", "msg": "no file descriptors to spare"}}
    with pytest.raises(LimitExceeded, match="no file descriptors to spare"):
        locksidecar.connect(sidecar.path)


def test_process_out_of_descriptors_raises_unavailable(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(_transport, "dial", refuse)
        with pytest.raises(Unavailable, match="ulimit -n"):
            locksidecar.connect(sidecar.path)
    with monkeypatch.context() as patch:
        patch.setattr(_shared_session, "socket_pair", refuse)
        with pytest.raises(Unavailable, match="ulimit -n"):
            locksidecar.connect(sidecar.path)


def test_server_that_closes_each_connection_is_not_reported_as_missing(sidecar: FakeSidecar) -> None:
    sidecar.rejection = {}
    with pytest.raises(Unavailable, match=r"closed the connection before it answered; is it locksidecar\?"):
        Client(sidecar.path).lock("n", timeout=0).acquire()


def test_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadRequest, match="107 bytes"):
        Client("/" + "x" * 107)


def test_path_comes_from_the_environment(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", sidecar.path)
    with locksidecar.connect() as client:
        assert client.ping() == "ok"
    monkeypatch.delenv("LOCKSIDECAR_SOCKET")
    assert Client().path == "/run/locksidecar/locksidecar.sock"


def test_connect_waits_for_a_sidecar_that_is_starting(sidecar: FakeSidecar) -> None:
    sidecar.stop_listening()
    begun = threading.Event()
    clients: list[Client] = []

    def connect() -> None:
        begun.set()
        clients.append(locksidecar.connect(sidecar.path))

    thread = threading.Thread(target=connect)
    thread.start()
    begun.wait(TIMEOUT)
    sidecar.listen()
    thread.join()
    assert clients[0].ping() == "ok"


def test_hello_has_the_version_of_the_package(sidecar: FakeSidecar) -> None:
    locksidecar.connect(sidecar.path)
    assert [m["client"] for m in sidecar.requests("hello")] == [f"python/{locksidecar.__version__}"]


def test_other_protocol_version_is_unsupported(sidecar: FakeSidecar) -> None:
    sidecar.version = 2
    with pytest.raises(Unsupported, match=r"speaks protocol version 2, .* upgrade this package"):
        locksidecar.connect(sidecar.path)
    sidecar.refuse["hello"] = ("unsupported", "this sidecar speaks 2 to 3")
    with pytest.raises(Unsupported, match="speaks 2 to 3"):
        locksidecar.connect(sidecar.path)
    sidecar.wait_for(lambda: not sidecar.connections())


@pytest.mark.parametrize("ahead", [-60 * S, 60 * S])
def test_sidecar_of_another_time_namespace_is_refused(sidecar: FakeSidecar, ahead: int) -> None:
    """Its deadlines are of another clock."""
    sidecar.clock = lambda: boottime() + ahead
    with pytest.raises(Unsupported, match="time namespace"):
        locksidecar.connect(sidecar.path)
    sidecar.wait_for(lambda: not sidecar.connections())


def test_too_many_sessions_raise_limit_exceeded(sidecar: FakeSidecar) -> None:
    sidecar.refuse["hello"] = ("limit", "4096 sessions are open; raise --max-sessions")
    with pytest.raises(LimitExceeded, match="--max-sessions"):
        locksidecar.connect(sidecar.path)


def test_protocol_violation_releases_no_lock(sidecar: FakeSidecar, client: Client) -> None:
    """The session has failed, but its connection stays open while a hold of it is valid."""
    lock = client.lock("n")
    lock.acquire()
    sidecar.broadcast_bytes(b"\x00\x00\x00\x00")
    assert not client.lock("n", timeout=0).acquire()
    assert sidecar.connections() == 2
    lock.held.check()
    lock.release()
    sidecar.wait_for(lambda: sidecar.connections() == 1)
    wait_free(sidecar, "n")


def test_protocol_violation_fails_a_waiting_call(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.silent = True
    errors: list[Exception] = []

    def ping() -> None:
        try:
            client.info("n")
        except ProtocolError as e:
            errors.append(e)

    thread = threading.Thread(target=ping)
    thread.start()
    sidecar.wait_for(lambda: sidecar.requests("info"))
    sidecar.broadcast_bytes(b"\xff\xff\xff\xff")
    thread.join(TIMEOUT)
    assert "4294967295 bytes" in str(errors[0])
    sidecar.wait_for(lambda: not sidecar.connections())


def test_sidecar_that_does_not_answer_is_unavailable(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, grace=0.02))
    monkeypatch.setattr(_transport, "CONNECT_WAIT", 0.02)
    monkeypatch.setattr(_transport, "ACQUIRE_GRACE", 0.02)
    sidecar.silent = True
    with pytest.raises(Unavailable, match="does not answer; is it stopped"):
        client.lock("n", timeout=0.01).acquire()
    with pytest.raises(Unavailable, match="does not answer"), client.lock("n", timeout=0):
        pytest.fail("the body ran without the lock")
    with pytest.raises(Unavailable, match="This ping is given up"):
        client.ping()
    monkeypatch.undo()
    sidecar.answer_all()
    assert client.ping() == "ok"
    wait_free(sidecar, "n")  # the late grant was released
    assert client.lock("n", timeout=5).acquire()


def test_release_into_a_full_socket_is_sent_later(sidecar: FakeSidecar, client: Client) -> None:
    locks = [client.lock(f"n{i}") for i in range(50)]
    for lock in locks:
        lock.acquire()
    sidecar.reading = False
    shared = client._shared
    assert shared is not None
    clogged = threading.Event()
    flush = shared.transport.flush

    def flush_and_record() -> bool:
        done = flush()
        if not done:
            clogged.set()
        return done

    shared.transport.flush = flush_and_record  # type: ignore[method-assign]
    assert shared.transport.sock is not None
    shared.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def release() -> None:
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=release)
    thread.start()
    assert clogged.wait(TIMEOUT)
    sidecar.resume_reading()
    thread.join(TIMEOUT)
    sidecar.wait_for(lambda: not any(sidecar.holder(f"n{i}") for i in range(50)))


def test_close_loses_locks_and_ends_the_session(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    lock = client.lock("n")
    lock.acquire()
    client.close()
    client.close()
    wait_free(sidecar, "n")
    with pytest.raises(LockLost, match="closed") as e:
        lock.release()
    assert e.value.reason == "closed"
    with pytest.raises(ClientClosed):
        client.ping()
    sidecar.wait_for(lambda: not sidecar.connections())


def test_close_fails_waiting_acquires(sidecar: FakeSidecar, other: Client) -> None:
    client = locksidecar.connect(sidecar.path)
    other.lock("n").acquire()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            client.lock("n").acquire()
        except ClientClosed as e:
            errors.append(e)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    sidecar.wait_for(lambda: sidecar.waiting("n") == 3)
    client.close()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(errors) == 3
    sidecar.wait_for(lambda: sidecar.connections() == 1)


@pytest.mark.parametrize("client", [Client, aio.Client])
def test_relative_path_of_the_socket_outlives_a_chdir(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: type[Client | aio.Client]
) -> None:
    directory, name = os.path.split(sidecar.path)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", name)
    assert client().path == client(name).path == sidecar.path
    assert client(sidecar.path).path == sidecar.path
    assert client("x" * 107).path == "x" * 107  # with its directory it is too long
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert client("s").path == "s"


def test_garbage_collected_client_is_closed(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    before = len(os.listdir("/proc/self/fd"))
    del client
    wait_free(sidecar, "n")
    assert len(os.listdir("/proc/self/fd")) < before


# --- Pickling ---


def test_client_is_pickled_as_its_path(sidecar: FakeSidecar, client: Client) -> None:
    copy = pickle.loads(pickle.dumps(client))
    assert copy.path == client.path
    assert copy is pickle.loads(pickle.dumps(client))
    assert copy.ping() == "ok"
    copy.close()
    locksidecar._sync._clients.clear()


def test_lock_is_pickled_without_its_hold(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n", timeout=0, lease=7)
    with lock as held:
        copy = pickle.loads(pickle.dumps(lock))
        assert isinstance(copy, locksidecar.RLock)
        assert copy.acquire() is False
        assert sidecar.requests("acquire")[-1]["lease_ms"] == 7000
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(held)
    copy._client.close()
    locksidecar._sync._clients.clear()


def test_pickles_of_version_0_1_can_be_loaded() -> None:
    """They name modules and functions of the package, and the order of the fields of Options."""
    pickled = (
        b"\x80\x02clocksidecar._sync\nRLock\nclocksidecar._sync\n_of_this_process\nX\x02\x00\x00\x00/p\x85R"
        b"X\x01\x00\x00\x00nclocksidecar._calls\nOptions\n)\x81](K\x00K\x07NG\x00\x00\x00\x00\x00\x00\x00\x00\x88\x89Neb\x87R."
    )
    for data, kind in (
        (pickled, locksidecar.RLock),
        (pickled.replace(b"_sync", b"aio"), locksidecar.aio.RLock),
    ):
        lock = pickle.loads(data)
        assert type(lock) is kind
        assert (lock._client.path, lock.name) == ("/p", "n")
        assert (lock._options.timeout, lock._options.lease, lock._options.reentrant) == (0, 7, True)
        request = acquire_call("n", 1, lock._options, 0).encode(2, 0)
        assert b"fair" not in request
    locksidecar._sync._clients.clear()
    locksidecar.aio._clients.clear()


def test_exceptions_can_be_pickled() -> None:
    for e in (
        LockLost("m", name="n", reason="stolen"),
        Unavailable("m", code="unavailable", may_have_happened=True),
        LockTimeout("m", code="timeout"),
    ):
        copy = pickle.loads(pickle.dumps(e))
        assert (type(copy), str(copy), copy.__dict__) == (type(e), "m", e.__dict__)


# --- Interrupts ---


def in_poll(client: Client) -> None:
    """Waits until a thread polls, or is about to poll, the socket."""
    shared = client._shared
    assert shared is not None
    while not shared._polling:
        os.sched_yield()


def ctrl_c(client: Client, interrupted: threading.Event) -> None:
    """Sends SIGINT to the main thread while it waits, until `interrupted` is set.

    A signal that arrives between the interpreter's last check and the system call interrupts neither.
    """
    in_poll(client)
    while True:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if interrupted.wait(5):
            return


def test_ctrl_c_ends_the_wait_and_nothing_leaks(sidecar: FakeSidecar, client: Client, other: Client) -> None:
    holder = other.lock("n")
    holder.acquire()

    def interrupt() -> None:
        sidecar.wait_for(lambda: sidecar.waiting("n"))
        ctrl_c(client, interrupted)

    interrupted = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), client.lock("n"):
        pytest.fail("the body ran without the lock")
    interrupted.set()
    thread.join()
    sidecar.wait_for(lambda: not sidecar.waiting("n"))
    assert client.ping() == "ok"
    holder.release()
    wait_free(sidecar, "n")


def test_grant_that_crosses_ctrl_c_is_released(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.silent = True

    def interrupt() -> None:
        sidecar.wait_for(lambda: sidecar.requests("acquire"))
        ctrl_c(client, interrupted)
        sidecar.wait_for(lambda: sidecar.requests("cancel"))
        sidecar.answer_all()

    interrupted = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.lock("n").acquire()
    interrupted.set()
    thread.join()
    sidecar.wait_for(lambda: sidecar.requests("release"))  # without another use of the client
    wait_free(sidecar, "n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a generator's close()
@pytest.mark.parametrize(("confirm", "watched"), [(False, False), (True, False), (False, True)])
def test_with_block_interrupted_at_any_point_leaves_no_lock_held(
    sidecar: FakeSidecar, client: Client, confirm: bool, watched: bool
) -> None:
    """Except before the first instruction of __exit__: a Python function cannot prevent that a handler runs there.

    The interpreter runs signal handlers when a Python function begins and when a C function has returned.
    """

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

    losses: list[LockLost] = []
    lock = client.lock("n", confirm=confirm, on_lost=losses.append if watched else None)
    kept = client.lock("kept")
    kept.acquire()
    for point in itertools.count(1):
        last = 0
        interrupted = False
        try:
            with profiled(interrupt_at(point)), lock:
                pass
        except Interrupt:
            interrupted = True
        wait_free(sidecar, "n")  # without another use of the client
        kept.held.check()
        assert len(sidecar.requests("hello")) == 1, point
        assert not list(lock._handles), point
        join_releasers()
        assert client.ping() == "ok"
        assert client._shared is not None
        while client._shared._watcher_running:
            pass
        assert not client._shared._watched, point
        assert not losses, point
        assert not client._shared.session._pending, point  # would be sent again after a restart, without a caller
        if not interrupted:
            break
    assert point > 50


def test_client_works_after_many_interrupts(sidecar: FakeSidecar) -> None:
    """An asynchronous exception may leave a lock held at the point named above, but the client must go on working."""
    script = f"""
import locksidecar, signal
class Tick(Exception): pass
def tick(*_):
    if armed:
        raise Tick
armed = False
signal.signal(signal.SIGALRM, tick)
client = locksidecar.connect({sidecar.path!r})
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
done = ticks = 0
while ticks < 200:
    try:
        armed = True
        while True:
            with client.lock(f"n{{ticks}}-{{done}}"):
                done += 1
    except Tick:
        armed = False
        ticks += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
with client.lock("n"):
    assert client.ping() == "ok"
client.close()
print(done)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0
    sidecar.wait_for(lambda: not sidecar.connections())
