"""A sidecar in memory: the protocol of SPEC.md, with a table of locks, read/write locks and semaphores in
the place of Redis.

Table is the protocol alone: requests in, frames out, and the time from outside. Server serves a Table on a Unix socket,
with one thread for all connections. locksidecar.testing is the part for users.

It differs from a sidecar in four ways: there are no limits of sessions, holds and waiters; a lock never lingers; the
deadline of a hold is the end of its lease, without a margin; and any user may force a release.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
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
_READ_WRITE_TIMEOUT: Final = re.compile(r":rwlock_timeout:[0-9]+\Z")

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
    """A name: a lock, which has one hold at most, a read/write lock, or a semaphore."""

    name: str
    serial: int  # the order of the pages of list
    holds: list[Hold] = field(default_factory=list)  # the oldest first
    waiters: deque[Waiter] = field(default_factory=deque)

    def admits(self, request: Message) -> bool:
        """Whether request can be granted beside the holds."""
        if request.get("shared"):
            return all(h.mode == "shared" for h in self.holds)
        if not request.get("of"):
            return not self.holds
        return all(h.permits for h in self.holds) and self.permits() + _permits(request) <= request["of"]

    def permits(self) -> int:
        return sum(h.permits for h in self.holds)

    def owners(self) -> list[tuple[Session, int]]:
        return [(h.session, h.owner) for h in self.holds]

    def begin_read_phase(self) -> None:
        """Those that want to share it come first, in their order."""
        self.waiters = deque(sorted(self.waiters, key=lambda w: not w.request.get("shared")))


def _kind(of: int, mode: str) -> str:
    """What a name with such a hold is."""
    return "a semaphore" if of else "a read/write lock" if mode else "a lock"


def _kind_of(request: Message) -> str:
    return _kind(request.get("of", 0), "exclusive" if request["op"] == "acquire_rw" else "")


def _permits(request: Message) -> int:
    """How many an acquire requests. A lock is like one permit."""
    permits: int = request.get("permits", 1)
    return permits


@dataclass(eq=False)
class Hold:
    """One grant, until its release or loss. Times are those of Table.now()."""

    lock: Lock = field(repr=False)
    session: Session
    token: int
    number: int = 0
    owner: int = 0
    permits: int = 0  # of a semaphore; 0: it is a lock
    of: int = 0
    mode: str = ""  # of a read/write lock: "shared" or "exclusive"
    count: int = 1
    since: int = 0  # of the grant
    lease_ns: int = 0  # the fixed lease; 0: the hold is renewed
    ends_at: int = 0  # the deadline of the hold
    max_hold_end: int | None = None
    deadline_ns: int = 0  # the same two, by Table.clock()
    end_ns: int = 0
    crash_delay_ns: int = 0
    released_at: int | None = None  # when crash_delay or keep ends; None: a client has the hold
    kept_until: int = 0  # when keep ends

    def next_end(self) -> int:
        """When the hold ends, unless it is renewed."""
        ends = [self.ends_at, self.max_hold_end, self.released_at]
        return min(end for end in ends if end is not None)


class Table:
    """The sessions, locks, read/write locks and semaphores of one sidecar. Not thread-safe."""

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
        self._elsewhere = Session(0)  # the holder of what is held on another host
        self._locks: dict[str, Lock] = {}
        self._unconfirmed: list[tuple[Session, Message]] = []
        self._next_renewal: int | None = None
        self._reset_numbers()
        self._serials = itertools.count(1)
        self._tokens = itertools.count(1_700_000_000_000_000)

    def _reset_numbers(self) -> None:
        self._numbers = itertools.count(1)
        self._numbers_of_holds = itertools.count(1)

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
            self._grant_waiters(lock)
        self.renew()

    def lose(self, name: str, reason: str, token: int | None = None) -> None:
        """token: of the hold that is lost; None: each hold of a client of this sidecar."""
        holds = [h for h in self._local_holds(name) if token in (None, h.token)]
        assert holds, f"{name} is not held by a client of this sidecar"
        for hold in holds:
            self._lose(hold, reason)

    def hold_elsewhere(self, name: str, permits: int = 0, shared: bool = False) -> int:
        """A program on another host acquires the lock, which must be free, or shares it, or permits. It returns the
        token.
        """
        lock = self._lock(name)
        assert permits or lock.admits({"shared": shared}), f"{name} is held"
        hold = Hold(lock, self._elsewhere, next(self._tokens), permits=permits, mode="shared" if shared else "")
        lock.holds.append(hold)
        return hold.token

    def release_elsewhere(self, name: str, token: int) -> None:
        for hold in [h for h in self._holds() if h.lock.name == name and h.token == token]:
            self._free(hold)

    def broadcast(self, message: Message) -> None:
        self.broadcast_bytes(frame(message))

    def broadcast_bytes(self, data: bytes) -> None:
        for session in list(self.sessions.values()):
            if session.connection is not None:
                session.connection.send(data)

    # --- State ---

    def holder(self, name: str) -> int:
        """The number of the session with the oldest hold; 0: none holds it."""
        lock = self._locks.get(name)
        return lock.holds[0].session.number if lock is not None and lock.holds else 0

    def is_held(self, name: str) -> bool:
        lock = self._locks.get(name)
        return lock is not None and bool(lock.holds)

    def permits_held(self, name: str) -> int:
        lock = self._locks.get(name)
        return lock.permits() if lock is not None else 0

    def waiting(self, name: str) -> int:
        lock = self._locks.get(name)
        return len(lock.waiters) if lock is not None else 0

    def held_by(self, number: int) -> dict[int, int]:
        """The holds of a session, with their counts."""
        return {h.number: h.count for h in self._holds() if h.session.number == number and h.released_at is None}

    def _holds(self) -> list[Hold]:
        return [hold for lock in self._locks.values() for hold in lock.holds]

    def _local_holds(self, name: str | None = None) -> list[Hold]:
        """Those of the clients of this sidecar, of one name or of all."""
        return [h for h in self._holds() if h.session is not self._elsewhere and name in (None, h.lock.name)]

    # --- Time ---

    def next_timer(self) -> int | None:
        """When fire() has something to do; None: nothing is due."""
        waiters = [w.expires_at for lock in self._locks.values() for w in lock.waiters if w.expires_at is not None]
        if not self.keeps_leases:
            return min(waiters, default=None)
        ends = [hold.next_end() for hold in self._local_holds()]
        renewal = [self._next_renewal] if self._next_renewal is not None and ends and not self.redis_down else []
        return min(waiters + ends + renewal, default=None)

    def fire(self) -> None:
        """Ends what is due: waits, leases and holds. Renews."""
        now = self.now()
        for lock in list(self._locks.values()):
            for waiter in [w for w in lock.waiters if w.expires_at is not None and w.expires_at <= now]:
                lock.waiters.remove(waiter)
                self._refuse_wait(lock, waiter.session, waiter.request)
            self._grant_waiters(lock)
        if not self.keeps_leases:
            return
        if self._next_renewal is not None and self._next_renewal <= now and not self.redis_down:
            self.renew()
        for hold in self._local_holds():
            if hold.released_at is not None and hold.released_at <= now:
                self._leave(hold)
            elif hold.max_hold_end is not None and hold.max_hold_end <= now:
                self._lose(hold, "max_hold")
            elif hold.ends_at <= now:
                self._lose(hold, "expired")

    def renew(self) -> None:
        """Renews the leases of all holds that have no fixed one."""
        if not self.keeps_leases:
            return
        now, deadline = self.now(), self.clock() + self.lease_ns
        self._next_renewal = now + self.lease_ns // 3
        sessions = set()
        for hold in self._local_holds():
            if not hold.lease_ns and hold.ends_at > now:
                hold.ends_at, hold.deadline_ns = now + self.lease_ns, deadline
                sessions.add(hold.session)
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
            for hold in [h for h in lock.holds if h.session is session]:
                if hold.crash_delay_ns and self.keeps_leases:
                    hold.released_at = self.now() + hold.crash_delay_ns
                else:
                    self._leave(hold)
            self._grant_waiters(lock)

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
        for hold in [h for h in self._holds() if h.session is session]:
            hold.count = claimed.get(hold.number, 0)
            if not hold.count:
                self._leave(hold)
            elif not hold.lease_ns:
                deadlines.append(hold.deadline_ns)
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
        if not lock.holds and not lock.waiters:
            self._locks.pop(lock.name, None)

    def _on_acquire(self, session: Session, m: Message) -> None:
        if m["name"].startswith(_RESERVED) or _READ_WRITE_TIMEOUT.search(m["name"]):
            self._error(session, m, "denied", f"the name {m['name']!r} is reserved: take another one")
            return
        lock = self._lock(m["name"])
        owner = m.get("owner", 0)
        own = [
            h for h in lock.holds if h.session is session and h.owner == owner and owner and m.get("reentrant", True)
        ]
        if (what := self._other_kind(lock, m)) is not None:
            self._error(session, m, "denied", f"this name is in use as {what} on this host; choose another name")
        elif m["op"] == "acquire_rw" and m.get("shared") and "keep_ms" in m:
            self._error(session, m, "bad_request", "keep_ms is not for a shared hold")
        elif own and (m.get("shared") or own[0].mode != "shared"):
            own[0].count += 1
            self._grant(own[0], m)
        elif not lock.waiters and not self.redis_down and lock.admits(m):
            self._grant_new_hold(lock, session, m)
        elif m.get("wait_ms") == 0:
            self._refuse_wait(lock, session, m)
        elif owner and (cycle := self._find_cycle(session, owner, lock)):
            self._error(session, m, "deadlock", cycle)
        else:
            wait, now = m.get("wait_ms"), self.now()
            lock.waiters.append(Waiter(session, m, now, None if wait is None else now + wait * _MS))
        self._forget_if_free(lock)

    _on_acquire_rw = _on_acquire
    _on_acquire_permits = _on_acquire

    def _on_downgrade(self, session: Session, m: Message) -> None:
        hold = self._find_hold(m["hold"], session)
        if hold is None:
            self._error(session, m, "not_held", "no such hold")
        elif hold.mode != "exclusive":
            self._error(session, m, "bad_request", "it is shared already, or no read/write lock")
        else:
            hold.mode = "shared"
            self._send(session, {"id": m["id"], "deadline_ns": hold.deadline_ns})
            hold.lock.begin_read_phase()
            self._grant_waiters(hold.lock, len(hold.lock.waiters))  # no Redis is needed for that

    def _other_kind(self, lock: Lock, m: Message) -> str | None:
        """What the clients of this sidecar use the name as, if that is not what m requests; None: it is."""
        uses = [_kind(h.of, h.mode) for h in self._local_holds(lock.name)] + [_kind_of(w.request) for w in lock.waiters]
        return uses[0] if uses and uses[0] != _kind_of(m) else None

    def _refuse_wait(self, lock: Lock, session: Session, m: Message) -> None:
        if self.redis_down and lock.admits(m):
            self._error(session, m, "unavailable", "Redis cannot be reached, and it is not known whether it is free")
        else:
            self._error(session, m, "timeout", "too few permits are free" if m.get("of") else "another owner holds it")

    def _find_cycle(self, session: Session, owner: int, lock: Lock) -> str:
        """Follows the owners that wait for each other, from lock's holders. Describes the steps if they lead to owner.

        An owner may wait for several locks at once.
        """
        received: set[tuple[Session, int]] = set()
        paths: deque[list[Lock]] = deque([[lock]])
        while paths:
            path = paths.popleft()
            for holder in path[-1].owners():
                if holder == (session, owner):
                    return _describe_cycle(path)
                if holder in received or not holder[1]:
                    continue
                received.add(holder)
                for x in self._locks.values():
                    if any((w.session, w.request.get("owner", 0)) == holder for w in x.waiters):
                        paths.append([*path, x])
        return ""

    def _grant_waiters(self, lock: Lock, handed_on: int = 0) -> None:
        """Grants what waits, in its order, as far as it fits.

        handed_on: of a hold that has just ended, before its lease: without Redis, its permits may be granted again.
        """
        while lock.waiters and lock.admits(lock.waiters[0].request):
            handed_on -= _permits(lock.waiters[0].request)
            if self.redis_down and handed_on < 0:
                break
            waiter = lock.waiters.popleft()
            self._grant_new_hold(lock, waiter.session, waiter.request)
        self._forget_if_free(lock)

    def _grant_new_hold(self, lock: Lock, session: Session, m: Message) -> None:
        now, clock = self.now(), self.clock()
        lease_ns, max_hold_ns = m.get("lease_ms", 0) * _MS, m.get("max_hold_ms", 0) * _MS
        hold = Hold(
            lock,
            session,
            next(self._tokens),
            next(self._numbers_of_holds),
            m.get("owner", 0),
            _permits(m) if m.get("of") else 0,
            m.get("of", 0),
            ("shared" if m.get("shared") else "exclusive") if m["op"] == "acquire_rw" else "",
            since=now,
            lease_ns=lease_ns,
            ends_at=now + (lease_ns or self.lease_ns),
            max_hold_end=now + max_hold_ns if max_hold_ns else None,
            deadline_ns=clock + (lease_ns or self.lease_ns),
            end_ns=clock + max_hold_ns,
            crash_delay_ns=m.get("crash_delay_ms", 0) * _MS,
            kept_until=now + m.get("keep_ms", 0) * _MS,
        )
        lock.holds.append(hold)
        if self._next_renewal is None and self.keeps_leases:
            self._next_renewal = now + self.lease_ns // 3
        self._grant(hold, m)

    def _grant(self, hold: Hold, m: Message) -> None:
        answer = {"id": m["id"], "token": hold.token, "hold": hold.number, "count": hold.count}
        answer["deadline_ns"] = hold.deadline_ns
        if hold.max_hold_end is not None:
            answer["end_ns"] = hold.end_ns
        if hold.mode == "shared":
            answer["shared"] = True
        if hold.of:
            answer |= {"permits": hold.permits, "of": hold.of}
        self._send(hold.session, answer)

    def _lose(self, hold: Hold, reason: str) -> None:
        if hold.session.connection is None:
            hold.session.unreported_losses[hold.number] = reason
        self._send(hold.session, {"ev": "lost", "hold": hold.number, "reason": reason})
        if reason in ("expired", "max_hold"):
            self._leave(hold)
        else:
            self._free(hold)

    def _leave(self, hold: Hold) -> None:
        """Ends the hold for its client. The lock stays held until its keep ends."""
        now = self.now()
        if hold.kept_until <= now or not self.keeps_leases:
            self._free(hold)
            return
        hold.session = replace(hold.session, connection=None)  # no client has it
        hold.owner, hold.count, hold.max_hold_end = 0, 1, None
        hold.ends_at = hold.released_at = hold.kept_until
        hold.deadline_ns = self.clock() + hold.kept_until - now

    def _free(self, hold: Hold) -> None:
        """Ends the hold. The next waiters get what it had; without Redis only if its lease has not ended."""
        hold.lock.holds.remove(hold)
        if hold.mode == "exclusive":
            hold.lock.begin_read_phase()
        lease_ended = self.keeps_leases and hold.ends_at <= self.now()
        self._grant_waiters(hold.lock, 0 if lease_ended else max(hold.permits, 1))

    def _find_hold(self, number: int, session: Session | None = None) -> Hold | None:
        return next((h for h in self._local_holds() if h.number == number and session in (None, h.session)), None)

    def _on_release(self, session: Session, m: Message) -> None:
        hold = self._find_hold(m["hold"], session)
        if hold is None:
            self._error(session, m, "not_held", "no such hold")
            return
        hold.count -= 1
        if "id" in m:
            self._send(session, {"id": m["id"], "count": hold.count})
        if hold.count == 0:
            self._leave(hold)

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
                    self._error(session, waiter.request, "canceled", "canceled")
                    self._grant_waiters(lock)
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
        return bool(lock.waiters or self._local_holds(lock.name))

    def _row(self, lock: Lock) -> Message:
        row: Message = {"name": lock.name}
        now, holds = self.now(), self._local_holds(lock.name)
        if holds:
            hold = holds[0]
            row |= {"state": "held", "count": hold.count, "owner": hold.owner, "deadline_ns": hold.deadline_ns}
            row |= self._holder(hold)
            if hold.lease_ns:
                row["lease_ms"] = hold.lease_ns // _MS
            if hold.kept_until > now:
                row["keep_left_ms"] = (hold.kept_until - now) // _MS
        elif lock.holds:
            row |= {"state": "remote", "remote_field": "another host:1", "remote_ttl_ms": self.lease_ns // _MS}
        else:
            row["state"] = "busy" if lock.waiters else "free"
        if of := max([h.of for h in holds] + [w.request.get("of", 0) for w in lock.waiters], default=0):
            row |= {"kind": "permits", "held": len(holds), "permits": sum(h.permits for h in holds), "of": of}
            row["holders"] = [self._holder(h) | {"permits": h.permits} for h in holds[:16]]
        elif any(h.mode for h in holds) or any(w.request["op"] == "acquire_rw" for w in lock.waiters):
            row |= {"kind": "rw", "held": len(holds), "shared": sum(h.mode == "shared" for h in holds)}
            row["holders"] = [self._holder(h) | {"shared": h.mode == "shared"} for h in holds[:16]]
        row["waiting"] = len(lock.waiters)
        row["waiters"] = [
            {
                "session": w.session.number,
                **w.session.peer.fields(),
                "owner": w.request.get("owner", 0),
                "shared": w.request.get("shared", False),
                "permits": _permits(w.request) if of else 0,
                "waited_ms": (now - w.since) // _MS,
            }
            for w in list(lock.waiters)[:16]
        ]
        return row

    def _holder(self, hold: Hold) -> Message:
        return {
            "hold": hold.number,
            "token": hold.token,
            "session": hold.session.number,
            **hold.session.peer.fields(),
            "held_ms": (self.now() - hold.since) // _MS,
            "absent": hold.session.connection is None and hold.released_at is None,
            "orphan": hold.released_at is not None,
        }

    def _on_force_release(self, session: Session, m: Message) -> None:
        holds = [h for h in self._local_holds(m["name"]) if m.get("hold", 0) in (0, h.number)]
        if not holds:
            self._error(session, m, "not_held", "no session of this sidecar holds it: force it on its host")
            return
        for hold in holds:
            self._lose(hold, "forced")
        answer: Message = {"id": m["id"], "hold": holds[-1].number}
        self._send(session, answer if len(holds) == 1 else answer | {"count": len(holds)})


def _describe_cycle(path: list[Lock]) -> str:
    text = f'waiting would never end: you ask for "{path[0].name}"'
    for held, awaited in itertools.pairwise(path):
        session, owner = held.owners()[0]
        peer = session.peer
        text += f', held by owner {owner} of {peer}, who waits for "{awaited.name}"'
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

    def lose(self, name: str, reason: str, token: int | None = None) -> None:
        with self._lock_all:
            super().lose(name, reason, token)
            self._wake()

    def hold_elsewhere(self, name: str, permits: int = 0, shared: bool = False) -> int:
        # No client waits for the answer to a release.
        self.wait_for(lambda: permits or self._lock(name).admits({"shared": shared}), 5)
        with self._lock_all:
            return super().hold_elsewhere(name, permits, shared)

    def release_elsewhere(self, name: str, token: int) -> None:
        with self._lock_all:
            super().release_elsewhere(name, token)
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

    def permits_held(self, name: str) -> int:
        with self._lock_all:
            return super().permits_held(name)

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
