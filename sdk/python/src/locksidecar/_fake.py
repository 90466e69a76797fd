"""A sidecar in memory: the protocol of SPEC.md, with a table of locks in the place of Redis.

Table is the protocol alone: requests in, frames out, and the time from outside. Server serves a Table on a Unix socket,
with one thread for all connections. locksidecar.testing is the part for users.

It differs from a sidecar in four ways: there are no limits of sessions, holds and waiters; a lock never lingers; the
deadline of a hold is the end of its lease, without a margin; and any user may force a release.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack

from ._clock import boottime
from ._protocol import VERSION

Message = dict[str, Any]

# Lock names that the daemon refuses: their keys would be those of its own data.
_RESERVED: Final = ("redisson_lock_", "redisson_unlock_latch:", "locksidecar_")

_MS: Final = 1_000_000


def frame(message: Message) -> bytes:
    body: bytes = msgpack.packb(message)
    return len(body).to_bytes(4, "big") + body


@dataclass(eq=False)
class Peer:
    """The process at the other end of a connection."""

    pid: int = 0
    uid: int = 0
    cmd: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.cmd})" if self.pid else "a client"

    def fields(self) -> Message:
        return {"pid": self.pid, "uid": self.uid, "cmd": self.cmd}


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
    peer: Peer = field(default_factory=Peer)


@dataclass(eq=False)
class Waiter:
    session: Session
    request: Message
    since: int
    expires_at: int | None


@dataclass(eq=False)
class Lock:
    """A name. Times are those of Table.now()."""

    name: str
    serial: int  # the order of the pages of list
    session: Session | None = None  # of the holder
    owner: int = 0
    hold: int = 0
    token: int = 0
    count: int = 0
    since: int = 0  # of the grant
    lease_ns: int = 0  # the fixed lease; 0: the hold is renewed
    ends_at: int = 0  # the deadline of the hold
    max_hold_end: int | None = None
    deadline_ns: int = 0  # the same two, by Table.clock()
    end_ns: int = 0
    crash_delay_ns: int = 0
    released_at: int | None = None  # when crash_delay or keep ends; None: a client has the hold
    kept_until: int = 0  # when keep ends
    waiters: deque[Waiter] = field(default_factory=deque)

    def next_end(self) -> int:
        """When the hold ends, unless it is renewed."""
        ends = [self.ends_at, self.max_hold_end, self.released_at]
        return min(end for end in ends if end is not None)


class Table:
    """The sessions and locks of one sidecar. Not thread-safe."""

    keeps_leases = True  # leases are renewed, and end
    sends_leases = True  # a renewal is reported to the clients

    def __init__(self) -> None:
        self.lease_ns = 30_000_000_000
        self.clock: Callable[[], int] = boottime  # of the times in frames
        self.now: Callable[[], int] = time.monotonic_ns  # of the timers
        self.version = VERSION
        self.resumable = True  # hello is answered with a ticket
        self.page_size = 100
        self.uuid = "fake"  # another one after a restart without state
        self.redis_down = False  # no free lock is granted, no confirm is answered, and no lease is renewed
        self.redis_slow = False  # no confirm is answered
        self.refuse: dict[str, tuple[str, str]] = {}  # the error that answers an op
        self.sessions: dict[int, Session] = {}
        self._elsewhere = Session(0)  # the holder of the locks that are held on another host
        self._locks: dict[str, Lock] = {}
        self._unconfirmed: list[tuple[Session, Message]] = []
        self._next_renewal: int | None = None
        self._reset_numbers()
        self._serials = itertools.count(1)
        self._tokens = itertools.count(1_700_000_000_000_000)

    def _reset_numbers(self) -> None:
        self._numbers = itertools.count(1)
        self._holds = itertools.count(1)

    # --- Controls ---

    def connect(self, send: Callable[[bytes], None], close: Callable[[], None], peer: Peer | None = None) -> Connection:
        session = Session(next(self._numbers), peer=peer or Peer())
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
        for lock in list(self._locks.values()):
            lock.waiters.clear()
            self._forget_if_free(lock)

    def restart_without_state(self) -> None:
        """A kill and a restart without the state."""
        self.restart()
        self.uuid += "'"
        self.sessions.clear()
        self._locks.clear()
        self._reset_numbers()

    def recover_redis(self) -> None:
        """Redis can be reached again, and has executed all releases."""
        self.redis_down = self.redis_slow = False
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for session, m in unconfirmed:
            self._on_confirm(session, m)
        for lock in list(self._locks.values()):
            if lock.session is None:
                self._free(lock)
        self.renew()

    def lose(self, name: str, reason: str) -> None:
        lock = self._locks.get(name)
        assert lock is not None, f"{name} is not held"
        assert lock.session not in (None, self._elsewhere), f"{name} is not held by a client of this sidecar"
        self._lose(lock, reason)

    def hold_elsewhere(self, name: str) -> int:
        """A program on another host acquires the lock, which must be free. Returns its token."""
        lock = self._lock(name)
        assert lock.session is None, f"{name} is held"
        lock.session, lock.token = self._elsewhere, next(self._tokens)
        return lock.token

    def release_elsewhere(self, name: str) -> None:
        lock = self._locks.get(name)
        if lock is not None and lock.session is self._elsewhere:
            self._free(lock)

    def broadcast(self, message: Message) -> None:
        self.broadcast_bytes(frame(message))

    def broadcast_bytes(self, data: bytes) -> None:
        for session in list(self.sessions.values()):
            if session.connection is not None:
                session.connection.send(data)

    # --- State ---

    def holder(self, name: str) -> int:
        """The number of the session that holds the lock; 0: none does."""
        lock = self._locks.get(name)
        return lock.session.number if lock is not None and lock.session is not None else 0

    def is_held(self, name: str) -> bool:
        lock = self._locks.get(name)
        return lock is not None and lock.session is not None

    def waiting(self, name: str) -> int:
        lock = self._locks.get(name)
        return len(lock.waiters) if lock is not None else 0

    def held_by(self, number: int) -> dict[int, int]:
        """The holds of a session, with their counts."""
        locks = self._locks.values()
        return {x.hold: x.count for x in locks if x.session and x.session.number == number and x.released_at is None}

    # --- Time ---

    def next_timer(self) -> int | None:
        """When fire() has something to do; None: nothing is due."""
        waiters = [w.expires_at for lock in self._locks.values() for w in lock.waiters if w.expires_at is not None]
        if not self.keeps_leases:
            return min(waiters, default=None)
        held = [lock for lock in self._locks.values() if lock.session not in (None, self._elsewhere)]
        ends = [lock.next_end() for lock in held]
        renewal = [self._next_renewal] if self._next_renewal is not None and held and not self.redis_down else []
        return min(waiters + ends + renewal, default=None)

    def fire(self) -> None:
        """Ends what is due: waits, leases and holds. Renews."""
        now = self.now()
        for lock in list(self._locks.values()):
            for waiter in [w for w in lock.waiters if w.expires_at is not None and w.expires_at <= now]:
                lock.waiters.remove(waiter)
                self._refuse_wait(lock, waiter.session, waiter.request)
            self._forget_if_free(lock)
        if not self.keeps_leases:
            return
        if self._next_renewal is not None and self._next_renewal <= now and not self.redis_down:
            self.renew()
        for lock in list(self._locks.values()):
            if lock.session in (None, self._elsewhere):
                continue
            if lock.released_at is not None and lock.released_at <= now:
                self._leave(lock)
            elif lock.max_hold_end is not None and lock.max_hold_end <= now:
                self._lose(lock, "max_hold")
            elif lock.ends_at <= now:
                self._lose(lock, "expired")

    def renew(self) -> None:
        """Renews the leases of all holds that have no fixed one."""
        if not self.keeps_leases:
            return
        now, deadline = self.now(), self.clock() + self.lease_ns
        self._next_renewal = now + self.lease_ns // 3
        sessions = set()
        for lock in self._locks.values():
            held = lock.session is not None and lock.session is not self._elsewhere
            if held and lock.session and not lock.lease_ns and lock.ends_at > now:
                lock.ends_at, lock.deadline_ns = now + self.lease_ns, deadline
                sessions.add(lock.session)
        for session in sessions if self.sends_leases else ():
            if session.claimed is None:  # else the lease event comes with the answer to the last claim
                self._send(session, {"ev": "lease", "deadline_ns": deadline})

    # --- Connections ---

    def handle(self, connection: Connection, message: Message) -> None:
        session, op = connection.session, message["op"]
        if not connection.hello_received and op != "hello":
            self._connection_error(session, "no_hello", "hello must be the first frame")
        elif session.claimed is not None and op not in ("claim", "bye"):
            self._connection_error(session, "bad_frame", "claims are due")
        elif op in self.refuse:
            self._error(session, message, *self.refuse[op])
        else:
            getattr(self, f"_on_{op}", self._on_unknown)(session, message)

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
        for lock in list(self._locks.values()):
            lock.waiters = deque(w for w in lock.waiters if w.session is not session)
            if lock.session is session and lock.crash_delay_ns and self.keeps_leases:
                lock.released_at = self.now() + lock.crash_delay_ns
            elif lock.session is session:
                self._leave(lock)
            else:
                self._forget_if_free(lock)

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

    def _on_unknown(self, session: Session, m: Message) -> None:
        self._error(session, m, "unsupported", f"this sidecar does not know {m['op']}")

    def _on_hello(self, session: Session, m: Message) -> None:
        assert session.connection is not None
        session.connection.hello_received = True
        resumed = self._find_resumable(m.get("resume", ""))
        if resumed is not None:
            del self.sessions[session.number]
            if resumed.connection is not None:
                replaced = resumed.connection
                replaced.session = Session(0)
                replaced.send(frame({"err": {"code": "unavailable", "msg": "resumed over a newer connection"}}))
                replaced.close()
            resumed.connection = session.connection
            resumed.peer = session.peer
            session.connection.session = resumed
            session = resumed
            session.claimed = {}
        answer: Message = {"id": m["id"], "v": self.version, "sidecar": self.uuid, "version": "0"}
        answer |= {"session": session.number, "lease_ms": self.lease_ns // _MS, "now_ns": self.clock()}
        if m.get("resumable") and self.resumable:
            answer["ticket"] = f"ticket {next(self._tokens)}"
            session.tickets = (*session.tickets, answer["ticket"])
        if resumed is not None:
            answer["resumed"] = True
        self._send(session, answer)

    def _find_resumable(self, ticket: str) -> Session | None:
        """The session of a ticket, if its client is away, or has claims to make: it gave up the connection before."""
        for session in self.sessions.values():
            if ticket in session.tickets and (session.connection is None or session.claimed is not None):
                return session
        return None

    def _on_claim(self, session: Session, m: Message) -> None:
        if session.claimed is None:
            self._connection_error(session, "bad_frame", "no claims are due")
            return
        held = self.held_by(session.number)
        holds = m["holds"]
        for hold, entries in zip(holds[::2], holds[1::2], strict=True):
            if hold in session.claimed:
                self._connection_error(session, "bad_frame", "a hold is named twice")
                return
            session.claimed[hold] = entries
            if hold not in held:
                self._send(
                    session, {"ev": "lost", "hold": hold, "reason": session.unreported_losses.get(hold, "forgotten")}
                )
            elif entries > held[hold]:
                self._connection_error(session, "bad_frame", "that is more than was granted")
                return
        if not m.get("more"):
            self._end_claims(session, session.claimed)
        self._send(session, {"id": m["id"]})

    def _end_claims(self, session: Session, claimed: dict[int, int]) -> None:
        session.claimed = None
        session.tickets = session.tickets[-1:]
        deadlines: list[int] = []
        for lock in list(self._locks.values()):
            if lock.session is session:
                lock.count = claimed.get(lock.hold, 0)
                if not lock.count:
                    self._leave(lock)
                elif not lock.lease_ns:
                    deadlines.append(lock.deadline_ns)
        if deadlines and self.keeps_leases:
            self._send(session, {"ev": "lease", "deadline_ns": min(deadlines)})

    def _on_bye(self, session: Session, m: Message) -> None:
        self._send(session, {"id": m["id"]})
        if session.connection is not None:
            session.connection.close()
        self._end_session(session)

    # --- Locks ---

    def _on_ping(self, session: Session, m: Message) -> None:
        redis = "it cannot be reached" if self.redis_down else "ok"
        self._send(session, {"id": m["id"], "now_ns": self.clock(), "redis": redis})

    def _lock(self, name: str) -> Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = Lock(name, next(self._serials))
        return lock

    def _forget_if_free(self, lock: Lock) -> None:
        if lock.session is None and not lock.waiters:
            self._locks.pop(lock.name, None)

    def _on_acquire(self, session: Session, m: Message) -> None:
        if m["name"].startswith(_RESERVED):
            self._error(session, m, "denied", f"the name {m['name']!r} is reserved: take another one")
            return
        lock = self._lock(m["name"])
        owner = m.get("owner", 0)
        if lock.session is session and lock.owner == owner and owner and m.get("reentrant", True):
            lock.count += 1
            self._grant(lock, m)
        elif lock.session is None and not lock.waiters and not self.redis_down:
            self._grant_new_hold(lock, session, m)
        elif m.get("wait_ms") == 0:
            self._refuse_wait(lock, session, m)
        elif owner and (cycle := self._find_cycle(session, owner, lock)):
            self._error(session, m, "deadlock", cycle)
        else:
            wait, now = m.get("wait_ms"), self.now()
            lock.waiters.append(Waiter(session, m, now, None if wait is None else now + wait * _MS))
        self._forget_if_free(lock)

    def _refuse_wait(self, lock: Lock, session: Session, m: Message) -> None:
        if lock.session is None and self.redis_down:
            self._error(session, m, "unavailable", "Redis cannot be reached, and it is not known whether it is free")
        else:
            self._error(session, m, "timeout", "another owner holds it")

    def _find_cycle(self, session: Session, owner: int, lock: Lock) -> str:
        """Follows the owners that wait for each other, from lock's holder. Describes the steps if they lead to owner.

        An owner may wait for several locks at once.
        """
        received: set[tuple[Session | None, int]] = set()
        paths: deque[list[Lock]] = deque([[lock]])
        while paths:
            path = paths.popleft()
            holder = (path[-1].session, path[-1].owner)
            if holder == (session, owner):
                return _describe_cycle(path)
            if holder in received or not holder[1]:
                continue
            received.add(holder)
            for x in self._locks.values():
                if any((w.session, w.request.get("owner", 0)) == holder for w in x.waiters):
                    paths.append([*path, x])
        return ""

    def _grant_new_hold(self, lock: Lock, session: Session, m: Message) -> None:
        now = self.now()
        lock.session, lock.owner, lock.count, lock.since = session, m.get("owner", 0), 1, now
        lock.hold, lock.token = next(self._holds), next(self._tokens)
        lock.lease_ns = m.get("lease_ms", 0) * _MS
        lock.ends_at = now + (lock.lease_ns or self.lease_ns)
        lock.max_hold_end = now + m["max_hold_ms"] * _MS if "max_hold_ms" in m else None
        clock = self.clock()
        lock.deadline_ns = clock + (lock.lease_ns or self.lease_ns)
        lock.end_ns = clock + m.get("max_hold_ms", 0) * _MS
        lock.crash_delay_ns = m.get("crash_delay_ms", 0) * _MS
        lock.released_at = None
        lock.kept_until = now + m.get("keep_ms", 0) * _MS
        if self._next_renewal is None and self.keeps_leases:
            self._next_renewal = now + self.lease_ns // 3
        self._grant(lock, m)

    def _grant(self, lock: Lock, m: Message) -> None:
        assert lock.session is not None
        answer = {"id": m["id"], "token": lock.token, "hold": lock.hold, "count": lock.count}
        answer["deadline_ns"] = lock.deadline_ns
        if lock.max_hold_end is not None:
            answer["end_ns"] = lock.end_ns
        self._send(lock.session, answer)

    def _lose(self, lock: Lock, reason: str) -> None:
        assert lock.session is not None
        if lock.session.connection is None:
            lock.session.unreported_losses[lock.hold] = reason
        self._send(lock.session, {"ev": "lost", "hold": lock.hold, "reason": reason})
        if reason in ("expired", "max_hold"):
            self._leave(lock)
        else:
            self._free(lock)

    def _leave(self, lock: Lock) -> None:
        """Ends the hold for its client. The lock stays held until its keep ends."""
        now = self.now()
        if lock.session is None or lock.kept_until <= now or not self.keeps_leases:
            self._free(lock)
            return
        lock.session = replace(lock.session, connection=None)  # no client has it
        lock.owner, lock.count, lock.max_hold_end = 0, 1, None
        lock.ends_at = lock.released_at = lock.kept_until
        lock.deadline_ns = self.clock() + lock.kept_until - now

    def _free(self, lock: Lock) -> None:
        """Ends the hold. The next waiter gets the lock; without Redis only from a hold whose lease has not ended."""
        lease_ended = self.keeps_leases and (lock.session is None or lock.ends_at <= self.now())
        lock.session, lock.owner, lock.count = None, 0, 0
        if lock.waiters and not (self.redis_down and lease_ended):
            waiter = lock.waiters.popleft()
            self._grant_new_hold(lock, waiter.session, waiter.request)
        self._forget_if_free(lock)

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
            self._leave(lock)

    def _on_confirm(self, session: Session, m: Message) -> None:
        if self.redis_down or self.redis_slow:
            self._unconfirmed.append((session, m))
        else:
            self._send(session, {"id": m["id"]})

    def _on_cancel(self, session: Session, m: Message) -> None:
        for lock in self._locks.values():
            for waiter in lock.waiters:
                if waiter.session is session and waiter.request["id"] == m["target"]:
                    lock.waiters.remove(waiter)
                    self._forget_if_free(lock)
                    self._error(session, waiter.request, "canceled", "canceled")
                    return

    def _on_info(self, session: Session, m: Message) -> None:
        lock = self._locks.get(m["name"])
        known = lock is not None and self._is_known(lock)
        self._send(session, {"id": m["id"], "lock": self._row(lock)} if known and lock else {"id": m["id"]})

    def _on_list(self, session: Session, m: Message) -> None:
        after = m.get("after", 0)
        locks = [x for x in self._locks.values() if x.serial > after and self._is_known(x)]
        page = locks[: self.page_size]
        answer: Message = {"id": m["id"], "locks": [self._row(x) for x in page]}
        if len(locks) > len(page):
            answer["next"] = page[-1].serial
        self._send(session, answer)

    def _is_known(self, lock: Lock) -> bool:
        """Whether a client of this sidecar holds the lock or waits for it."""
        return bool(lock.waiters) or lock.session is not self._elsewhere

    def _row(self, lock: Lock) -> Message:
        row: Message = {"name": lock.name}
        now = self.now()
        if lock.session is self._elsewhere:
            row |= {"state": "remote", "remote_field": "another host:1", "remote_ttl_ms": self.lease_ns // _MS}
        elif lock.session is None:
            row["state"] = "busy" if lock.waiters else "free"
        else:
            row |= {"state": "held", "hold": lock.hold, "token": lock.token, "count": lock.count, "owner": lock.owner}
            row |= {"session": lock.session.number, **lock.session.peer.fields()}
            row |= {"held_ms": (now - lock.since) // _MS, "deadline_ns": lock.deadline_ns}
            if lock.lease_ns:
                row["lease_ms"] = lock.lease_ns // _MS
            row["orphan"] = lock.released_at is not None
            if lock.kept_until > now:
                row["keep_left_ms"] = (lock.kept_until - now) // _MS
            row["absent"] = lock.session.connection is None and lock.released_at is None
        row["waiting"] = len(lock.waiters)
        row["waiters"] = [
            {
                "session": w.session.number,
                **w.session.peer.fields(),
                "owner": w.request.get("owner", 0),
                "waited_ms": (now - w.since) // _MS,
            }
            for w in list(lock.waiters)[:16]
        ]
        return row

    def _on_force_release(self, session: Session, m: Message) -> None:
        lock = self._locks.get(m["name"])
        if lock is None or lock.session in (None, self._elsewhere):
            self._error(session, m, "not_held", "no session of this sidecar holds it: force it on its host")
            return
        hold = lock.hold
        self._lose(lock, "forced")
        self._send(session, {"id": m["id"], "hold": hold})


def _describe_cycle(path: list[Lock]) -> str:
    text = f'waiting would never end: you ask for "{path[0].name}"'
    for held, awaited in itertools.pairwise(path):
        peer = held.session.peer if held.session is not None else Peer()
        text += f', held by owner {held.owner} of {peer}, who waits for "{awaited.name}"'
    advice = "take the two in one order everywhere" if len(path) > 1 else "acquire it as a re-entrant lock"
    return f"{text}, which you hold; release it first, or {advice}"


@dataclass(eq=False)
class ServerSocket:
    sock: socket.socket
    connection: Connection
    received: bytearray = field(default_factory=bytearray)


class Server(Table):
    """A Table that is served on a Unix socket. Thread-safe."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._pid = os.getpid()
        self._sockets: dict[socket.socket, ServerSocket] = {}
        self._selector = selectors.DefaultSelector()
        self._lock_all = threading.RLock()
        self._changed = threading.Condition(self._lock_all)
        self._waker, self._waker_end = socket.socketpair()
        self._selector.register(self._waker_end, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._running = True
        self._thread = threading.Thread(target=self._run, name="locksidecar in memory", daemon=True)
        self.listen()
        self._thread.start()

    # --- Controls ---

    def listen(self) -> None:
        if sys.platform == "win32":
            raise OSError("there are no Unix sockets here")
        with self._lock_all:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.path)
            self._listener.listen(64)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._wake()

    def stop_listening(self) -> None:
        """New connections are refused, and the socket is removed."""
        with self._lock_all:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
                os.unlink(self.path)

    def is_of_this_process(self) -> bool:
        """A forked child has no thread of the server, and the socket is its parent's."""
        return self._pid == os.getpid()

    def stop(self) -> None:
        if not self.is_of_this_process():
            return
        with self._lock_all:
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

    def restart(self) -> None:
        with self._lock_all:
            super().restart()
            self._changed.notify_all()

    def restart_without_state(self) -> None:
        with self._lock_all:
            super().restart_without_state()

    def lose(self, name: str, reason: str) -> None:
        with self._lock_all:
            super().lose(name, reason)
            self._wake()

    def hold_elsewhere(self, name: str) -> int:
        self.wait_for(lambda: not self.holder(name), 5)  # no client waits for the answer to a release
        with self._lock_all:
            return super().hold_elsewhere(name)

    def release_elsewhere(self, name: str) -> None:
        with self._lock_all:
            super().release_elsewhere(name)
            self._wake()

    def recover_redis(self) -> None:
        with self._lock_all:
            super().recover_redis()
            self._wake()

    def broadcast_bytes(self, data: bytes) -> None:
        with self._lock_all:
            super().broadcast_bytes(data)

    # --- State ---

    def holder(self, name: str) -> int:
        with self._lock_all:
            return super().holder(name)

    def is_held(self, name: str) -> bool:
        with self._lock_all:
            return super().is_held(name)

    def waiting(self, name: str) -> int:
        with self._lock_all:
            return super().waiting(name)

    def connections(self) -> int:
        with self._lock_all:
            return len(self._sockets)

    def wait_for(self, what: Callable[[], object], timeout: float) -> bool:
        """Waits until what() is true. Returns whether that was before the timeout, in seconds."""
        with self._changed:
            return bool(self._changed.wait_for(what, timeout))

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
                    elif isinstance(key.data, ServerSocket) and key.data.sock in self._sockets:
                        self._read(key.data)
                self.fire()
                self._after_events()
                self._changed.notify_all()

    def _after_events(self) -> None:
        """For subclasses."""

    def _select_timeout(self) -> float | None:
        with self._lock_all:
            at = self.next_timer()
            return None if at is None else max(at - self.now(), 0) / 1e9

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

        if not self._admit(sock, send):
            sock.close()
            return
        entry = self._sockets[sock] = ServerSocket(sock, self.connect(send, close, _peer_of(sock)))
        self._selector.register(sock, selectors.EVENT_READ, entry)

    def _admit(self, sock: socket.socket, send: Callable[[bytes], None]) -> bool:
        """For subclasses: whether a new connection is served."""
        return True

    def _read(self, entry: ServerSocket) -> None:
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
            self.handle(entry.connection, message)


def _peer_of(sock: socket.socket) -> Peer:
    if sys.platform != "linux":
        return Peer()
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            cmd = file.read(64).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        cmd = ""
    return Peer(pid, uid, cmd)
