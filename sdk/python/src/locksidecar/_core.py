"""What a client knows, without I/O and without a clock: bytes in, bytes out, time as an argument.

One Session stands for one connection. Sync and asyncio clients differ only in how they move its bytes
and wake its callers. Times are nanoseconds of CLOCK_BOOTTIME, the clock of every deadline.

A Session is not thread-safe: whoever moves its bytes guards it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from . import _protocol as protocol
from ._errors import (
    BadRequest,
    Deadlock,
    Denied,
    LimitExceeded,
    LockLost,
    LocksidecarError,
    LockTimeout,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from ._strict import Fields
from ._version import __version__

# A sidecar that does not read must not let requests pile up here without bound.
MAX_UNSENT: Final = 1 << 20

T = TypeVar("T")


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Options:
    """How to acquire one lock; durations in seconds, checked when made."""

    timeout: float | None = None  # None: for ever
    lease: float | None = None  # None: the sidecar renews
    max_hold: float | None = None
    crash_delay: float = 0.0
    reentrant: bool = False

    def __post_init__(self) -> None:
        if self.timeout is not None:
            _check("timeout", self.timeout, 0, protocol.MAX_DURATION_MS)
        if self.lease is not None:
            _check("lease", self.lease, protocol.MIN_LEASE_MS, protocol.MAX_DURATION_MS)
        if self.max_hold is not None:
            _check("max_hold", self.max_hold, 1, protocol.MAX_DURATION_MS)
        _check("crash_delay", self.crash_delay, 0, protocol.MAX_CRASH_DELAY_MS)


def _check(what: str, seconds: float, least_ms: int, most_ms: int) -> None:
    if not least_ms <= seconds * 1000 <= most_ms:
        raise BadRequest(f"{what} must be from {least_ms / 1000:g} to {most_ms // 1000} seconds, not {seconds!r}")


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


@dataclass(slots=True, eq=False)
class Hold:
    """One lock held by one owner. Several entries (of an rlock) share it."""

    number: int
    name: str
    token: int
    told: int  # the largest deadline that this hold itself was told
    leased: bool  # has a fixed lease: lease events do not concern it
    told_after: int  # lease events that came before the grant
    final: int = 0  # when its max_hold will have passed; 0: it has none
    entries: int = 0  # not released yet
    lost: str = ""  # the reason
    # The sidecar said that it ended. If only the deadline passed here, the sidecar may still keep it,
    # and must be told of the release.
    ended: bool = False


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A request on its way, until its answer."""

    id: int
    op: str
    name: str
    parse: Callable[[Fields], T]
    end: int  # of its bytes, counted over all that the session ever queued
    done: bool = False
    abandoned: bool = False  # nobody waits for the answer
    answer: T | None = None
    error: LocksidecarError | None = None
    # Of an acquire:
    leased: bool = False
    hold: Hold | None = None  # what it was granted

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "asked before it was done"
        return self.answer


@dataclass(slots=True, eq=False)
class Session:
    """One connection's requests, answers and holds."""

    path: str
    # What happened since the edge last looked; it takes the contents and wakes whom they concern.
    done: list[Call[Any]] = field(default_factory=list)
    lost: list[Hold] = field(default_factory=list)
    # What has been sent is deleted from it.
    unsent: bytearray = field(default_factory=bytearray)
    # Why no more can be asked. Holds outlive it, to their deadlines.
    failure: LocksidecarError | None = None
    # The process was forked: everything here is the parent's.
    inherited: bool = False
    live: int = 0  # holds neither released nor lost

    _received: bytearray = field(default_factory=bytearray)
    _queued: int = 0
    _last_id: int = 0
    _pending: dict[int, Call[Any]] = field(default_factory=dict)
    _holds: dict[int, Hold] = field(default_factory=dict)
    _leases: int = 0  # lease events seen
    _lease: int = 0  # deadline of the newest

    # --- Requests ---

    def hello(self) -> Call[protocol.HelloOK]:
        return self._ask("hello", "", protocol.hello_ok, lambda id: protocol.hello(id, f"python/{__version__}"))

    def acquire(self, name: str, owner: int, options: Options, wait: float | None) -> Call[protocol.AcquireOK]:
        """wait is what is left of options.timeout."""
        call = self._ask(
            "acquire",
            name,
            protocol.acquire_ok,
            lambda id: protocol.acquire(
                id,
                name,
                owner,
                reentrant=options.reentrant,
                wait_ms=None if wait is None else math.ceil(max(wait, 0) * 1000),
                lease_ms=_ms(options.lease),
                max_hold_ms=_ms(options.max_hold),
                crash_delay_ms=round(options.crash_delay * 1000),
            ),
        )
        call.leased = options.lease is not None
        return call

    def info(self, name: str) -> Call[protocol.InfoOK]:
        return self._ask("info", name, protocol.info_ok, lambda id: protocol.info(id, name))

    def page(self, after: int) -> Call[protocol.ListOK]:
        return self._ask("list", "", protocol.list_ok, lambda id: protocol.list_(id, after))

    def force_release(self, name: str) -> Call[protocol.ForceReleaseOK]:
        return self._ask("force_release", name, protocol.force_release_ok, lambda id: protocol.force_release(id, name))

    def ping(self) -> Call[protocol.PingOK]:
        return self._ask("ping", "", protocol.ping_ok, protocol.ping)

    def _ask(self, op: str, name: str, parse: Callable[[Fields], T], encode: Callable[[int], bytes]) -> Call[T]:
        if self.failure is not None:
            raise _failed(type(self.failure), str(self.failure), False)
        if len(self.unsent) > MAX_UNSENT:
            raise Unavailable(
                f"the sidecar at {self.path} does not read what it is sent; is it stopped or overloaded? "
                "Nothing was sent"
            )
        self._last_id += 1
        frame = encode(self._last_id)
        call = Call(self._last_id, op, name, parse, self._queued + len(frame))
        # In this order, so that an interrupt in between leaves no request whose answer nobody knows.
        self._pending[call.id] = call
        self._send(frame)
        return call

    def abandon(self, call: Call[Any]) -> None:
        """Nobody waits for call any more. Whatever it is granted, now or later, is released."""
        if call.done:
            self._undo(call)
            return
        call.abandoned = True
        if call.op == "acquire" and self.failure is None:
            self._send(protocol.cancel(call.id))

    def _undo(self, call: Call[Any]) -> None:
        hold, call.hold = call.hold, None
        if hold is not None:
            self._leave(hold)

    def _send(self, frame: bytes) -> None:
        self._queued += len(frame)
        self.unsent += frame

    # --- Holds ---

    def deadline(self, hold: Hold) -> int:
        """Until when hold may be believed in: the largest deadline that it was told, or the end of its max_hold."""
        told = hold.told
        if not hold.leased and hold.told_after != self._leases:
            told = max(told, self._lease)
        return min(told, hold.final) if hold.final else told

    def reason(self, hold: Hold, now: int) -> str:
        """Why hold is lost; "" if it is not."""
        if not hold.lost and hold.entries and now >= self.deadline(hold):
            self._lose(hold, "max_hold" if hold.final and now >= hold.final else "expired")
        return hold.lost

    def leave(self, entry: Entry, now: int) -> str:
        """One entry less, and entry is released. Returns why its hold is lost, "" if it was still good."""
        reason = self.reason(entry.hold, now)
        self._leave(entry.hold, entry)
        return reason

    def _leave(self, hold: Hold, entry: Entry | None = None) -> None:
        frame = b"" if hold.ended or self.failure is not None else protocol.release(hold.number)
        size = len(frame)
        booked = self._holds.get(hold.number) is hold
        # No calls from here on, so that no handler of a signal raises halfway: who is interrupted
        # can see in the entry whether it has to be done again.
        if entry is not None:
            entry.released = True
        hold.entries -= 1
        self._queued += size
        self.unsent += frame
        if hold.entries == 0:
            if booked:
                del self._holds[hold.number]
            if not hold.lost:
                self.live -= 1

    def _lose(self, hold: Hold, reason: str) -> None:
        hold.lost = reason
        self.live -= 1
        self.lost.append(hold)

    def lose_all(self, reason: str) -> None:
        """The connection is about to be closed on purpose, and the sidecar will give the locks away."""
        for hold in self._holds.values():
            hold.ended = True
            if not hold.lost:
                self._lose(hold, reason)
        self._holds.clear()

    def live_until(self) -> int:
        """The latest deadline of all holds that are neither released nor lost; 0 if there is none."""
        return max((self.deadline(h) for h in self._holds.values() if not h.lost), default=0)

    # --- What the sidecar says ---

    def receive(self, data: bytes) -> None:
        """Takes in what was read. Whatever breaks the protocol ends the session."""
        self._received += data
        try:
            while self.failure is None and (body := protocol.split(self._received)) is not None:
                self._take(protocol.decode(body))
        except ProtocolError as e:
            self.fail(f"the sidecar at {self.path} broke the protocol: {e}.", ProtocolError)

    def _take(self, reply: protocol.Reply) -> None:
        match reply:
            case protocol.Answer(id=id, fields=fields):
                # Nothing is marked before all that can be wrong has been checked: what stays
                # pending is told when the session fails.
                call = self._asked(id)
                call.answer = call.parse(fields)
                if isinstance(call.answer, protocol.AcquireOK):
                    self._granted(call, call.answer)
                self._finish(call)
                if call.abandoned:
                    self._undo(call)
            case protocol.Refusal(id=0, code=code, msg=msg):
                error = Unavailable if code == "unavailable" else ProtocolError
                self.fail(f"the sidecar at {self.path} ended the connection: {msg} ({code}).", error)
            case protocol.Refusal(id=id):
                call = self._asked(id)
                call.error = _refused(call, reply)
                self._finish(call)
            case protocol.LostEvent(hold=number, reason=reason):
                # Unknown: released here while the event was under way.
                hold = self._holds.pop(number, None)
                if hold is not None:
                    hold.ended = True
                    if not hold.lost:
                        self._lose(hold, reason)
            case protocol.LeaseEvent(deadline_ns=deadline):
                if deadline < self._lease:
                    # The newest event no longer speaks for the older ones.
                    for hold in self._holds.values():
                        hold.told = self.deadline(hold)
                        hold.told_after = self._leases
                self._leases += 1
                self._lease = deadline
            case protocol.UnknownEvent():
                pass

    def _asked(self, id: int) -> Call[Any]:
        call = self._pending.get(id)
        if call is None:
            raise ProtocolError(f"it answered request {id}, which is not waiting for an answer")
        return call

    def _finish(self, call: Call[Any]) -> None:
        del self._pending[call.id]
        call.done = True
        self.done.append(call)

    def _granted(self, call: Call[Any], grant: protocol.AcquireOK) -> None:
        hold = self._holds.get(grant.hold)
        # A hold believed lost stays lost. If the sidecar knows better, its new entry gets a belief of its own.
        if hold is None or hold.lost:
            # A re-entry of a hold that was left here meanwhile does not tell what lease the hold has:
            # then it is good for as long as was told.
            leased = call.leased or grant.count > 1 if hold is None else hold.leased
            hold = Hold(grant.hold, call.name, grant.token, grant.deadline_ns, leased, self._leases, grant.end_ns)
            self._holds[hold.number] = hold
            self.live += 1
        else:
            hold.told = max(self.deadline(hold), grant.deadline_ns)
            hold.told_after = self._leases
        hold.entries += 1
        call.hold = hold

    def end(self) -> None:
        """The sidecar closed the connection."""
        self.fail(f"the sidecar at {self.path} closed the connection; has it been stopped or restarted?", Unavailable)

    def fail(self, why: str, error: type[LocksidecarError] = Unavailable) -> None:
        """No more can be sent or received. Every waiting call ends; holds stay good to their deadlines."""
        if self.failure is None:
            self.failure = error(why)
            self.fail_pending()

    def fail_pending(self) -> None:
        """Of a failed session. Whoever was interrupted in it calls it again."""
        if self.failure is None:
            return
        error, why = type(self.failure), str(self.failure)
        first_unsent = self._queued - len(self.unsent)
        for call in list(self._pending.values()):
            if call.end > first_unsent:
                call.error = _failed(error, f"{why} This {call.op} was not carried out", False)
            elif call.op == "acquire":
                call.error = _failed(error, f"{why} If this acquire was granted, that ended with the connection", True)
            else:
                call.error = _failed(error, f"{why} This {call.op} may have been carried out", True)
            self._finish(call)
        # New ones: in a forked child the old may be, for ever, in the hands of a send() of a thread
        # that exists in the parent only.
        self.unsent = bytearray()
        self._received = bytearray()


def _failed(error: type[LocksidecarError], message: str, may_have_happened: bool) -> LocksidecarError:
    if issubclass(error, Unavailable):
        return error(message, may_have_happened=may_have_happened)
    return error(message)


_CODES: Final[dict[str, type[LocksidecarError]]] = {
    "timeout": LockTimeout,
    "deadlock": Deadlock,
    "unavailable": Unavailable,
    "denied": Denied,
    "limit": LimitExceeded,
    "not_held": NotHeld,
    "bad_request": BadRequest,
    "unsupported": Unsupported,
}


def _refused(call: Call[Any], refusal: protocol.Refusal) -> LocksidecarError:
    error = _CODES.get(refusal.code, LocksidecarError)
    what = f"{call.op} {call.name!r}" if call.name else call.op
    return error(f"{what}: {refusal.msg or refusal.code}", code=refusal.code)


class Entry:
    """One entry into one hold: what its user has in hand, from acquire to release.

    A late release can never free a newer hold, because nothing here ever refers to another one.
    """

    __slots__ = ("hold", "released", "session")

    def __init__(self, session: Session, hold: Hold) -> None:
        self.session = session
        self.hold = hold
        self.released = False

    def check(self, now: int) -> None:
        self._held("is not held any more: it was released")
        if reason := self.session.reason(self.hold, now):
            raise self.loss(reason)

    def release(self, now: int) -> None:
        self._held("was released before")
        if reason := self.session.leave(self, now):
            raise self.loss(reason)

    def lost(self, now: int) -> str:
        if self.session.inherited:
            self._held("")
        return self.session.reason(self.hold, now)

    def remaining(self, now: int) -> int:
        """Nanoseconds until the deadline; 0 if the lock is not held any more."""
        if self.released or self.session.inherited or self.session.reason(self.hold, now):
            return 0
        return self.session.deadline(self.hold) - now

    def _held(self, otherwise: str) -> None:
        if self.session.inherited:
            raise NotHeld(f"the lock {self.hold.name!r} is the parent process's: nothing is inherited by fork")
        if self.released:
            raise NotHeld(f"the lock {self.hold.name!r} {otherwise}")

    def loss(self, reason: str) -> LockLost:
        what = _REASONS.get(reason, reason)
        return LockLost(f"the lock {self.hold.name!r} was lost: {what}", name=self.hold.name, reason=reason)


_REASONS: Final = {
    "expired": "its deadline passed (expired)",
    "deleted": "its key vanished from Redis (deleted)",
    "stolen": "somebody else's name is in its key in Redis (stolen)",
    "forced": "an operator ended it (forced)",
    "max_hold": "its max_hold passed (max_hold)",
    "closed": "this client was closed (closed)",
}
