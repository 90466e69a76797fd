"""A fake sidecar in memory: SPEC.md without Redis, and with controls for faults.

Sidecar is the protocol alone: a test delivers its frames. FakeSidecar serves the protocol on a real socket, with one
thread for all connections. A test waits for a state of it with wait_for(), never by the clock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

TIMEOUT = 20.0  # seconds; only a failing test waits that long

Message = dict[str, Any]


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def frame(message: Message) -> bytes:
    body: bytes = msgpack.packb(message)
    return len(body).to_bytes(4, "big") + body


@dataclass(eq=False)
class Connection:
    send: Callable[[bytes], None]
    close: Callable[[], None]
    session: Session
    hello_received: bool = False


@dataclass(eq=False)
class Session:
    number: int
    connection: Connection | None = None  # None: the client has not reconnected yet
    # The newest, and until the last claim also the one before, because the client may not have received the newest.
    tickets: tuple[str, ...] = ()
    claimed: dict[int, int] | None = None  # the claims received; None: no claims are due
    unreported_losses: dict[int, str] = field(default_factory=dict)  # of holds that were lost without a connection


@dataclass(eq=False)
class Waiter:
    session: Session
    request: Message
    expires_at: float | None


@dataclass(eq=False)
class Lock:
    name: str
    session: Session | None = None  # of the holder
    owner: int = 0
    hold: int = 0
    token: int = 0
    count: int = 0
    leased: bool = False
    waiters: deque[Waiter] = field(default_factory=deque)


class Sidecar:
    """Not thread-safe."""

    def __init__(self) -> None:
        self.lease_ns = 30_000_000_000
        self.clock: Callable[[], int] = boottime
        self.version = 1  # of the protocol
        self.resumable = True  # hello is answered with a ticket
        self.renewed = True  # a session that is resumed gets a lease event
        self.page_size = 100
        self.uuid = "fake"  # another one after a restart without state
        self.redis_down = False  # no confirm is answered
        self.refuse: dict[str, tuple[str, str]] = {}  # the error that answers an op
        self.received: list[tuple[int, Message]] = []  # all requests, with the numbers of their sessions
        self.sessions: dict[int, Session] = {}
        self.grants: list[tuple[str, int, int]] = []  # name, hold, count after the grant
        self._locks: dict[str, Lock] = {}
        self._unconfirmed: list[tuple[Session, Message]] = []
        self._reset_numbers()
        self._tokens = itertools.count(1_700_000_000_000_000)

    def _reset_numbers(self) -> None:
        self._numbers = itertools.count(1)
        self._holds = itertools.count(1)

    # --- Controls ---

    def connect(self, send: Callable[[bytes], None], close: Callable[[], None]) -> Connection:
        session = Session(next(self._numbers))
        session.connection = Connection(send, close, session)
        self.sessions[session.number] = session
        return session.connection

    def restart(self) -> None:
        """A kill and a restart with the same state, at once. The new sidecar ends the sessions that hold nothing."""
        for session in list(self.sessions.values()):
            if session.connection is not None:
                session.connection.close()
                session.connection = None
            session.claimed = None
            if not session.tickets or not self.held_by(session.number):
                del self.sessions[session.number]
        self._unconfirmed.clear()
        for lock in self._locks.values():
            lock.waiters.clear()

    def restart_without_state(self) -> None:
        """A kill and a restart without the state."""
        self.restart()
        self.uuid += "'"
        self.sessions.clear()
        self._locks.clear()
        self._reset_numbers()

    def recover_redis(self) -> None:
        """Redis can be reached again, and has executed all releases."""
        self.redis_down = False
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for session, m in unconfirmed:
            self._on_confirm(session, m)

    def lose(self, name: str, reason: str) -> None:
        lock = self._locks[name]
        assert lock.session is not None, f"{name} is not held"
        if lock.session.connection is None:
            lock.session.unreported_losses[lock.hold] = reason
        self._send(lock.session, {"ev": "lost", "hold": lock.hold, "reason": reason})
        self._free(lock)

    def broadcast(self, message: Message) -> None:
        self.broadcast_bytes(frame(message))

    def extend_leases(self, deadline_ns: int) -> None:
        """Sends a lease event to all sessions."""
        self.broadcast({"ev": "lease", "deadline_ns": deadline_ns})

    def broadcast_bytes(self, data: bytes) -> None:
        for session in list(self.sessions.values()):
            if session.connection is not None:
                session.connection.send(data)

    # --- State ---

    def requests(self, op: str) -> list[Message]:
        return [m for _, m in self.received if m["op"] == op]

    def holder(self, name: str) -> int:
        """The number of the session that holds the lock; 0: none does."""
        lock = self._locks.get(name)
        return lock.session.number if lock is not None and lock.session is not None else 0

    def waiting(self, name: str) -> int:
        lock = self._locks.get(name)
        return len(lock.waiters) if lock is not None else 0

    def held_by(self, number: int) -> dict[int, int]:
        """The holds of a session, with their counts."""
        return {x.hold: x.count for x in self._locks.values() if x.session and x.session.number == number}

    # --- Connections ---

    def handle(self, connection: Connection, message: Message) -> None:
        self.received.append((connection.session.number, message))
        self._dispatch(connection, message)

    def _dispatch(self, connection: Connection, message: Message) -> None:
        session, op = connection.session, message["op"]
        if not connection.hello_received and op != "hello":
            self._connection_error(session, "no_hello", "hello must be the first frame")
        elif session.claimed is not None and op not in ("claim", "bye"):
            self._connection_error(session, "bad_frame", "claims are due")
        elif op in self.refuse:
            self._error(session, message, *self.refuse[op])
        else:
            getattr(self, f"_on_{op}")(session, message)

    def on_disconnected(self, connection: Connection) -> None:
        """The client closed the connection."""
        connection.close()
        session = connection.session
        session.connection = None
        if session.claimed is not None:
            session.claimed = None  # the session waits for its client as before
        else:
            self._end_session(session)

    def _end_session(self, session: Session) -> None:
        self.sessions.pop(session.number, None)
        for lock in self._locks.values():
            lock.waiters = deque(w for w in lock.waiters if w.session is not session)
        for lock in list(self._locks.values()):
            if lock.session is session:
                self._free(lock)

    def _connection_error(self, session: Session, code: str, msg: str) -> None:
        self._send(session, {"err": {"code": code, "msg": msg}})
        if session.connection is not None:
            session.connection.close()
            session.connection = None
            session.tickets = ()

    def _send(self, session: Session, message: Message) -> None:
        if session.connection is not None:
            session.connection.send(frame(message))

    def _error(self, session: Session, message: Message, code: str, msg: str) -> None:
        if "id" in message:
            self._send(session, {"id": message["id"], "err": {"code": code, "msg": msg}})

    def _on_hello(self, session: Session, m: Message) -> None:
        assert session.connection is not None
        session.connection.hello_received = True
        resumed = self._find_resumable(session, m.get("resume", ""))
        if resumed is not None:
            del self.sessions[session.number]
            resumed.connection = session.connection
            session.connection.session = resumed
            session = resumed
            session.claimed = {}
        answer: Message = {"id": m["id"], "v": self.version, "sidecar": self.uuid, "version": "0"}
        answer |= {"session": session.number, "lease_ms": self.lease_ns // 1_000_000, "now_ns": self.clock()}
        if m.get("resumable") and self.resumable:
            answer["ticket"] = f"ticket {next(self._tokens)}"
            session.tickets = (*session.tickets, answer["ticket"])
        if resumed is not None:
            answer["resumed"] = True
        self._send(session, answer)

    def _find_resumable(self, session: Session, ticket: str) -> Session | None:
        return next((x for x in self.sessions.values() if x.connection is None and ticket in x.tickets), None)

    def _on_claim(self, session: Session, m: Message) -> None:
        if session.claimed is None:
            self._connection_error(session, "bad_frame", "no claims are due")
            return
        held = self.held_by(session.number)
        holds = m["holds"]
        assert len(holds) <= 2 * 4096
        for hold, entries in zip(holds[::2], holds[1::2], strict=True):
            assert hold not in session.claimed
            session.claimed[hold] = entries
            if hold not in held:
                self._send(
                    session, {"ev": "lost", "hold": hold, "reason": session.unreported_losses.get(hold, "forgotten")}
                )
            elif entries > held[hold]:
                self._connection_error(session, "bad_frame", "that is more than was granted")
                return
        if not m.get("more"):
            claimed, session.claimed = session.claimed, None
            session.tickets = session.tickets[-1:]
            for lock in list(self._locks.values()):
                if lock.session is session:
                    lock.count = claimed.get(lock.hold, 0)
                    if not lock.count:
                        self._free(lock)
            if self.renewed and self.held_by(session.number):
                self._send(session, {"ev": "lease", "deadline_ns": self.clock() + self.lease_ns})
        self._send(session, {"id": m["id"]})

    def _on_bye(self, session: Session, m: Message) -> None:
        self._send(session, {"id": m["id"]})
        if session.connection is not None:
            session.connection.close()
        self._end_session(session)

    # --- Locks ---

    def _on_ping(self, session: Session, m: Message) -> None:
        self._send(session, {"id": m["id"], "now_ns": self.clock(), "redis": "ok"})

    def _on_acquire(self, session: Session, m: Message) -> None:
        lock = self._locks.setdefault(m["name"], Lock(m["name"]))
        owner = m.get("owner", 0)
        if lock.session is session and lock.owner == owner and owner and m.get("reentrant", True):
            lock.count += 1
            self._grant(lock, m)
        elif lock.session is None:
            self._grant_new_hold(lock, session, m)
        elif m.get("wait_ms") == 0:
            self._error(session, m, "timeout", "another owner holds it")
        elif owner and (cycle := self._find_cycle(session, owner, lock)):
            self._error(session, m, "deadlock", cycle)
        else:
            wait = m.get("wait_ms")
            lock.waiters.append(Waiter(session, m, None if wait is None else time.monotonic() + wait / 1000))

    def _find_cycle(self, session: Session, owner: int, lock: Lock) -> str:
        """Follows the owners that wait for each other, from lock's holder. Returns the steps if they lead to owner."""
        steps = []
        received: set[tuple[Session | None, int]] = set()
        at: Lock | None = lock
        while at is not None:
            holder = (at.session, at.owner)
            steps.append(f"{at.name} is held by owner {at.owner}")
            if holder == (session, owner):
                return ", ".join(steps)
            if holder in received:
                return ""
            received.add(holder)
            at = next(
                (
                    x
                    for x in self._locks.values()
                    if any((w.session, w.request.get("owner", 0)) == holder for w in x.waiters)
                ),
                None,
            )
        return ""

    def _grant_new_hold(self, lock: Lock, session: Session, m: Message) -> None:
        lock.session, lock.owner, lock.count = session, m.get("owner", 0), 1
        lock.hold, lock.token = next(self._holds), next(self._tokens)
        lock.leased = "lease_ms" in m
        self._grant(lock, m)

    def _grant(self, lock: Lock, m: Message) -> None:
        assert lock.session is not None
        self.grants.append((lock.name, lock.hold, lock.count))
        lease = m["lease_ms"] * 1_000_000 if lock.leased and "lease_ms" in m else self.lease_ns
        self._send(
            lock.session,
            {
                "id": m["id"],
                "token": lock.token,
                "hold": lock.hold,
                "count": lock.count,
                "deadline_ns": self.clock() + lease,
            },
        )

    def _free(self, lock: Lock) -> None:
        lock.session, lock.owner, lock.count = None, 0, 0
        if lock.waiters:
            waiter = lock.waiters.popleft()
            self._grant_new_hold(lock, waiter.session, waiter.request)

    def _expire_waiters(self) -> None:
        now = time.monotonic()
        for lock in self._locks.values():
            for waiter in [w for w in lock.waiters if w.expires_at is not None and w.expires_at <= now]:
                lock.waiters.remove(waiter)
                self._error(waiter.session, waiter.request, "timeout", "another owner holds it")

    def _find_lock(self, hold: int, session: Session | None = None) -> Lock | None:
        locks = self._locks.values()
        return next((x for x in locks if x.hold == hold and x.session and session in (None, x.session)), None)

    def _on_release(self, session: Session, m: Message) -> None:
        lock = self._find_lock(m["hold"], session)
        if lock is None:
            self._error(session, m, "not_held", "no such hold")
            return
        lock.count -= 1
        if "id" in m:
            self._send(session, {"id": m["id"], "count": lock.count})
        if lock.count == 0:
            self._free(lock)

    def _on_confirm(self, session: Session, m: Message) -> None:
        if self.redis_down:
            self._unconfirmed.append((session, m))
        else:
            self._send(session, {"id": m["id"]})

    def _on_cancel(self, session: Session, m: Message) -> None:
        for lock in self._locks.values():
            for waiter in lock.waiters:
                if waiter.session is session and waiter.request["id"] == m["target"]:
                    lock.waiters.remove(waiter)
                    self._error(session, waiter.request, "canceled", "canceled")
                    return

    def _on_info(self, session: Session, m: Message) -> None:
        lock = self._locks.get(m["name"])
        self._send(session, {"id": m["id"]} if lock is None else {"id": m["id"], "lock": self._row(lock)})

    def _on_list(self, session: Session, m: Message) -> None:
        locks = list(self._locks.values())[m.get("after", 0) :]
        answer: Message = {"id": m["id"], "locks": [self._row(x) for x in locks[: self.page_size]]}
        if len(locks) > self.page_size:
            answer["next"] = m.get("after", 0) + self.page_size
        self._send(session, answer)

    def _row(self, lock: Lock) -> Message:
        if lock.session is None:
            return {"name": lock.name, "state": "free"}
        return {
            "name": lock.name,
            "state": "held",
            "hold": lock.hold,
            "token": lock.token,
            "count": lock.count,
            "session": lock.session.number,
            "waiting": len(lock.waiters),
            "waiters": [{"session": w.session.number, "cmd": "python"} for w in list(lock.waiters)[:16]],
        }

    def _on_force_release(self, session: Session, m: Message) -> None:
        lock = self._locks.get(m["name"])
        if lock is None or lock.session is None:
            self._error(session, m, "not_held", "no session of this sidecar holds it")
            return
        hold = lock.hold
        self.lose(m["name"], "forced")
        self._send(session, {"id": m["id"], "hold": hold})


@dataclass(eq=False)
class _Socket:
    sock: socket.socket
    connection: Connection
    received: bytearray = field(default_factory=bytearray)


class FakeSidecar(Sidecar):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.silent = False  # reads requests and does not answer them
        self.reading = True
        self.rejection: Message | None = None  # sent to a new connection before it is closed; {}: nothing is sent
        self._unanswered: list[tuple[Connection, Message]] = []
        self._sockets: dict[socket.socket, _Socket] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waker, self._waker_end = socket.socketpair()
        self._selector.register(self._waker_end, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._running = True
        self._thread = threading.Thread(target=self._run, name="fake sidecar", daemon=True)
        self.listen()
        self._thread.start()

    # --- Controls ---

    def listen(self) -> None:
        with self._lock:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.path)
            self._listener.listen(64)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._wake()

    def stop_listening(self) -> None:
        """New connections are refused, and the socket is removed."""
        with self._lock:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
                os.unlink(self.path)

    def restart(self) -> None:
        with self._lock:
            self._unanswered.clear()
            super().restart()

    def restart_without_state(self) -> None:
        with self._lock:
            super().restart_without_state()

    def stop(self) -> None:
        with self._lock:
            if not self._running:
                return
            self.stop_listening()
            self.restart()
            self._running = False
            self._wake()
        self._thread.join()
        self._selector.close()
        self._waker.close()
        self._waker_end.close()

    def lose(self, name: str, reason: str) -> None:
        with self._lock:
            super().lose(name, reason)

    def broadcast_bytes(self, data: bytes) -> None:
        with self._lock:
            super().broadcast_bytes(data)

    def answer_all(self) -> None:
        """Ends `silent`, and answers the requests that were received meanwhile."""
        with self._lock:
            self.silent = False
            unanswered, self._unanswered = self._unanswered, []
            for connection, message in unanswered:
                self._dispatch(connection, message)
            self._wake()

    def recover_redis(self) -> None:
        with self._lock:
            super().recover_redis()

    def resume_reading(self) -> None:
        with self._lock:
            self.reading = True
            self._wake()

    # --- State ---

    def requests(self, op: str) -> list[Message]:
        with self._lock:
            return super().requests(op)

    def holder(self, name: str) -> int:
        with self._lock:
            return super().holder(name)

    def waiting(self, name: str) -> int:
        with self._lock:
            return super().waiting(name)

    def connections(self) -> int:
        with self._lock:
            return len(self._sockets)

    def wait_for(self, what: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(what, TIMEOUT), "the expected state did not occur in time"

    # --- The thread ---

    def _wake(self) -> None:
        self._waker.send(b"x")

    def _run(self) -> None:
        while True:
            events = self._selector.select(self._select_timeout())
            with self._changed:
                if not self._running:
                    return
                for key, _ in events:
                    if key.fileobj is self._waker_end:
                        self._waker_end.recv(4096)
                    elif key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Socket) and key.data.sock in self._sockets and self.reading:
                        self._read(key.data)
                self._expire_waiters()
                self._update_registrations(self.reading)
                self._changed.notify_all()

    def _update_registrations(self, reading: bool) -> None:
        for entry in self._sockets.values():
            registered = entry.sock in self._selector.get_map()
            if reading and not registered:
                self._selector.register(entry.sock, selectors.EVENT_READ, entry)
            elif not reading and registered:
                self._selector.unregister(entry.sock)

    def _select_timeout(self) -> float | None:
        with self._lock:
            times = [w.expires_at for lock in self._locks.values() for w in lock.waiters if w.expires_at is not None]
        return max(min(times) - time.monotonic(), 0) if times else None

    def _accept(self) -> None:
        assert self._listener is not None
        sock, _ = self._listener.accept()

        def send(data: bytes) -> None:
            with contextlib.suppress(OSError):  # _read() is about to notice that it is closed
                sock.sendall(data)

        def close() -> None:
            if self._sockets.pop(sock, None) is not None:
                if sock in self._selector.get_map():
                    self._selector.unregister(sock)
                sock.close()

        if self.rejection is not None:
            if self.rejection:
                send(frame(self.rejection))
            sock.close()
            return
        entry = self._sockets[sock] = _Socket(sock, self.connect(send, close))
        self._selector.register(sock, selectors.EVENT_READ, entry)

    def _read(self, entry: _Socket) -> None:
        try:
            data = entry.sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.on_disconnected(entry.connection)
            return
        entry.received += data
        while len(entry.received) >= 4 and entry.sock in self._sockets:
            end = 4 + int.from_bytes(entry.received[:4], "big")
            if len(entry.received) < end:
                break
            message = msgpack.unpackb(bytes(entry.received[4:end]))
            del entry.received[:end]
            if self.silent:
                self.received.append((entry.connection.session.number, message))
                self._unanswered.append((entry.connection, message))
            else:
                self.handle(entry.connection, message)
