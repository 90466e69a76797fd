"""What a client knows, without I/O and without a clock: bytes in, bytes out, time as an argument.

One Session stands for one session, which outlives its connection. Sync and asyncio clients differ only in
how they connect, move its bytes and wake its callers. Times are nanoseconds of CLOCK_BOOTTIME, the clock of
every deadline.

A Session is not thread-safe: whoever moves its bytes guards it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Final, Generic, TypeVar

from . import _protocol as protocol
from ._errors import (
    BadRequest,
    ClientClosed,
    Deadlock,
    Denied,
    LimitExceeded,
    LockLost,
    LocksidecarError,
    LockTimeout,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unconfirmed,
    Unsupported,
    sentence,
)
from ._strict import Fields
from ._version import __version__

# A sidecar that does not read must not let requests pile up here without bound.
MAX_UNSENT: Final = 1 << 20

# Where the bytes of a call end that has not been queued on this connection.
_UNSENT: Final = 1 << 63

T = TypeVar("T")


boottime: Final[Callable[[], int]] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Options:
    """How to acquire one lock; durations in seconds, checked when made."""

    timeout: float | None = None  # None: for ever
    lease: float | None = None  # None: the sidecar renews
    max_hold: float | None = None
    crash_delay: float = 0.0
    reentrant: bool = False
    confirm: bool = False  # at the end of a block
    confirm_timeout: float | None = None  # None: no limit

    def __post_init__(self) -> None:
        if self.timeout is not None:
            _check("timeout", self.timeout, 0, protocol.MAX_DURATION_MS)
        if self.lease is not None:
            _check("lease", self.lease, protocol.MIN_LEASE_MS, protocol.MAX_DURATION_MS)
        if self.max_hold is not None:
            _check("max_hold", self.max_hold, 1, protocol.MAX_DURATION_MS)
        _check("crash_delay", self.crash_delay, 0, protocol.MAX_CRASH_DELAY_MS)
        if self.confirm_timeout is not None:
            _check("confirm_timeout", self.confirm_timeout, 0, protocol.MAX_DURATION_MS)
            if not self.confirm:
                raise BadRequest("confirm_timeout is for a lock with confirm=True; add it, or leave out the timeout")

    def confirms(self, exc: BaseException | None) -> bool:
        """Whether a block that ends with exc waits for the confirmation. Cancellation and Ctrl-C end it at once."""
        return self.confirm and (exc is None or isinstance(exc, (Exception, SystemExit)))


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
    # The sidecar knows it if this is the session's era. If only the deadline passed here, the sidecar may
    # still keep it, and must be told of the release.
    era: int
    final: int = 0  # when its max_hold will have passed; 0: it has none
    lease: int = 0  # its fixed lease; 0: it has none, or it is not known
    entries: int = 0  # not released yet
    lost: str = ""  # the reason


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A request, from when it was asked to its answer, over as many connections as that takes."""

    op: str
    name: str
    parse: Callable[[Fields], T]
    encode: Callable[[int, int], bytes]  # of an id, and of the time at which it is sent
    id: int = 0  # on this connection
    end: int = _UNSENT  # of its bytes, counted over all that the session ever queued
    sent: bool = False  # on an earlier connection
    done: bool = False
    abandoned: bool = False  # nobody waits for the answer
    answer: T | None = None
    error: LocksidecarError | None = None
    # Of an acquire:
    leased: bool = False
    lease: int = 0  # nanoseconds
    hold: Hold | None = None  # what it was granted

    @property
    def asked(self) -> bool:
        """Whether the sidecar may have read it."""
        return self.sent or self.end != _UNSENT

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "asked before it was done"
        return self.answer


class Awaited(IntEnum):
    """Which answer a Confirm waits for.

    ::

        CONFIRM ──(a new session of the same sidecar)──► INFO
           ▲                                              │
           └───────(the sidecar does not have the hold)───┘
    """

    CONFIRM = 0  # to confirm. It was sent after the release, or the sidecar is known to have read the release
    INFO = 1  # to info. It says whether the sidecar still has the hold: then it has not read the release


@dataclass(slots=True, eq=False)
class Confirm(Call[bool]):
    """The request that is answered when Redis has executed a release, which was sent before it.

    A successor ends the sessions that hold nothing. If it has the same uuid, it still knows which releases its
    predecessor had not executed, and can confirm them in a new session. If it still has the hold, the predecessor
    did not read the release, and an answer to confirm would prove nothing.
    """

    released: Hold | None = None
    sidecar: str = ""  # the uuid of the sidecar that executes the release
    awaited: Awaited = Awaited.CONFIRM
    free_at: int = 0  # when the lease ends in Redis, at the latest

    def unconfirmed(self, why: LocksidecarError, now: int) -> Unconfirmed:
        """The error of a release that was not confirmed."""
        left = max(self.free_at - now, 0) / 1e9
        if left:
            free = f"other hosts find it free within {math.ceil(left)} s at the latest, when its lease ends"
        else:
            free = "its lease has ended in Redis meanwhile"
        return Unconfirmed(
            f"the release of the lock {self.name!r} is not confirmed: {sentence(str(why))} "
            f"The lock is released here, and {free}",
            code=why.code,
            name=self.name,
            free_within=left,
        )


class Stage(IntEnum):
    """How far a session has come on the connection that it has now.

    ::

                  begin()           hello answered         last claim answered
        ADRIFT ───────────► GREETING ────────────► CLAIMING ───────────► SERVING
           ▲                   │      not resumed: nothing to claim         ▲ │
           │                   └────────────────────────────────────────────┘ │
           └───────────── end(), from each of them ◄──────────────────────────┘

    OVER comes after fail(), or when the sidecar has answered bye, and is final.
    """

    OVER = 0
    ADRIFT = 1
    GREETING = 2
    CLAIMING = 3
    SERVING = 4


@dataclass(slots=True, eq=False)
class Session:
    """Requests, answers and holds of one session, over one connection after another.

    While there is no connection calls wait and holds are good to their deadlines. When there is one again
    the session is resumed: what is still held is claimed, then what waits is asked again, in its order.
    """

    path: str
    stage: Stage = Stage.ADRIFT
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
    # Until when the sidecar, or Redis, may keep for this session what it has given up without being heard.
    # 0: there is no such thing.
    debt: int = 0

    _received: bytearray = field(default_factory=bytearray)
    _queued: int = 0
    _last_id: int = 0
    _pending: dict[int, Call[Any]] = field(default_factory=dict)
    _holds: dict[int, Hold] = field(default_factory=dict)  # by their numbers in this era
    _leases: int = 0  # lease events seen
    _lease: int = 0  # deadline of the newest
    _released: int = 0  # end of the last release among all bytes ever queued
    _heard: int = 0  # how many of them the sidecar has read for certain

    # Of greetings:
    _ticket: str = ""
    _sidecar: str = ""  # uuid of the sidecar that answered the newest hello
    _lease_ns: int = 0  # of the watchdog
    _began: int = 0
    # What to do with the answers to hello, claim and bye, by id; with the time.
    _steps: dict[int, Callable[[Fields, int], None]] = field(default_factory=dict)
    # Counts greetings, for those holds that they left with the sidecar.
    _era: int = 1
    _behind_claims: bytearray = field(default_factory=bytearray)  # releases of what is being claimed
    _scattered: bool = False  # the last connection has left something to be sorted
    _bye: Call[bool] | None = None

    # --- Connections ---

    def begin(self, now: int) -> None:
        """There is a new connection: says hello on it."""
        self._sort(now)
        id = self._last_id + 1
        hello = protocol.hello(id, f"python/{__version__}", resumable=True, resume=self._ticket)
        self._began = now
        self._last_id = id
        self._steps = {id: self._greeted}
        self._received = bytearray()
        self._enter(Stage.GREETING, hello)

    def _enter(self, stage: Stage, says: bytes | bytearray) -> None:
        queued = self._queued + len(says)
        # No calls from here on: whoever is interrupted finds that nothing of it was done, or all.
        self.stage = stage
        self._queued = queued
        self.unsent += says

    def end(self, now: int) -> None:
        """The connection ended without our doing."""
        if self.stage > Stage.ADRIFT:
            if self._released > self._heard:  # perhaps unread by a sidecar that is no more
                self._owe(now + 2 * self._lease_ns)
            self._scattered = True
            self.stage = Stage.ADRIFT
            self._sort(now)

    def _sort(self, now: int) -> None:
        """Keeps of what was under way what can be asked again. Whoever was interrupted in it calls it again."""
        if not self._scattered:
            return
        first_unsent = self._queued - len(self.unsent)
        for call in list(self._pending.values()):
            call.sent = call.sent or call.end <= first_unsent
            call.end = _UNSENT
            if call.abandoned:
                self._drop(call, now)
            elif call.sent and call.op == "force_release":
                call.error = Unavailable(
                    f"the connection to the sidecar at {self.path} ended; has it been restarted? "
                    f"This {call.op} may have been carried out",
                    may_have_happened=True,
                )
                self._finish(call)
        if self._bye is not None and not self._ticket:
            self.part()
        self._behind_claims = bytearray()
        self._steps = {}
        # New ones: in a forked child the old may be, for ever, in the hands of a send() of a thread
        # that exists in the parent only.
        self._received = bytearray()
        self.unsent = bytearray()
        self._scattered = False

    def _drop(self, call: Call[Any], now: int) -> None:
        """Nobody waits for call, and it will not be asked again."""
        if call.sent and call.op == "acquire":
            self._owe(now + 2 * self._lease_ns)
        self._finish(call)

    def _owe(self, until: int) -> None:
        self.debt = max(self.debt, until)

    def _greeted(self, fields: Fields, now: int) -> None:
        answer = protocol.hello_ok(fields)
        if answer.v != protocol.VERSION:
            raise Unsupported(
                f"the sidecar at {self.path} (version {answer.version}) speaks protocol version {answer.v}, "
                f"this client {protocol.VERSION}: update the older of the two."
            )
        # The sidecar read its clock between the two. One of ours that is behind would let us believe for too long.
        if not self._began - 1_000_000_000 <= answer.now_ns <= now:
            ahead = (answer.now_ns - now) / 1e9
            raise Unsupported(
                f"the clock of the sidecar at {self.path} (CLOCK_BOOTTIME) differs from ours by {ahead:g} s: "
                "run both in one time namespace."
            )
        if answer.resumed and not self._ticket:
            raise ProtocolError("it resumed a session without having been asked to")
        self._lease_ns = answer.lease_ms * 1_000_000
        self._sidecar = answer.sidecar
        if answer.resumed:
            self._ticket = answer.ticket
            self._claim() if self._bye is None else self._say_bye()
        elif self._bye is not None:
            self.part()
        else:
            self._start_anew()
            self._ticket = answer.ticket  # not before: with it goes what was granted under it
            self._serve(now)

    def _claim(self) -> None:
        """Claims what is held at this moment. What was found lost is the sidecar's to release."""
        era = self._era + 1
        claimed = {number: hold for number, hold in self._holds.items() if not hold.lost}
        pairs: list[int] = []
        for hold in claimed.values():
            pairs += (hold.number, hold.entries)
            hold.era = era
        frames = bytearray()
        size = 2 * protocol.MAX_CLAIMS
        for start in range(0, len(pairs) or 1, size):
            self._last_id += 1
            last = start + size >= len(pairs)
            frames += protocol.claim(self._last_id, pairs[start : start + size], more=not last)
            self._steps[self._last_id] = self._claimed if last else self._noted
        self._holds = claimed
        self._era = era
        self._enter(Stage.CLAIMING, frames)

    def _noted(self, _: Fields, now: int) -> None:
        """One page of the claims was read; what counts is the last."""

    def _claimed(self, _: Fields, now: int) -> None:
        if self._bye is None:
            self._serve(now)

    def _start_anew(self) -> None:
        """The sidecar knows nothing of what was held: it is good as long as was told."""
        for hold in self._holds.values():
            hold.told = self.deadline(hold)
            hold.leased = True
        # At once, for the new session may use the old numbers.
        self._holds = {}
        self._era += 1
        for call in self._pending.values():
            if isinstance(call, Confirm) and not call.done:
                call.awaited = Awaited.INFO
                if call.sidecar != self._sidecar:
                    call.error = _unknown_release()
                    self.done.append(call)
                    call.done = True  # _serve() leaves it out

    def _serve(self, now: int) -> None:
        """Asks what waits; the session is as if nothing had happened."""
        pending: dict[int, Call[Any]] = {}
        out = bytearray(self._behind_claims)
        releases = len(out)
        for call in self._pending.values():
            if call.done:  # given up by who was interrupted here, when it had its new id
                continue
            if isinstance(call, Confirm):
                assert call.released is not None
                call.free_at = self._lease_end(call.released, now)  # the successor may have renewed it
            self._last_id += 1
            if isinstance(call, Confirm) and call.awaited is Awaited.INFO:
                out += protocol.info(self._last_id, call.name)
            else:
                out += call.encode(self._last_id, now)
            call.id = self._last_id
            call.end = self._queued + len(out)
            pending[call.id] = call
        self._heard = self._queued
        self._released = self._queued + releases
        self._pending = pending
        self._behind_claims = bytearray()
        self.debt = 0
        self._enter(Stage.SERVING, out)

    def _on_info(self, call: Confirm, lock: protocol.LockInfo | None, now: int) -> None:
        """The successor has described the lock of call: sends the confirm, unless it still has the hold."""
        assert call.released is not None
        if lock is not None and lock.hold == call.released.number:
            call.error = LocksidecarError(
                "the sidecar was restarted before it had read the release, and its successor did not resume the session"
            )
        if call.error is not None or call.abandoned:
            self._finish(call)
            return
        id = self._last_id + 1
        frame = call.encode(id, now)
        queued = self._queued + len(frame)
        # No calls from here on: an interrupt finds that all of it was done, or nothing.
        del self._pending[call.id]
        self._last_id = id
        call.awaited = Awaited.CONFIRM
        call.id = id
        call.end = queued
        self._pending[id] = call
        self._queued = queued
        self.unsent += frame

    # --- Requests ---

    def acquire(self, name: str, owner: int, options: Options, now: int) -> Call[protocol.AcquireOK]:
        """now matters only to who does not wait for ever."""
        until = None if options.timeout is None else now + round(options.timeout * 1e9)
        lease = 0 if options.lease is None else round(options.lease * 1e9)
        call = self._ask(
            "acquire",
            name,
            protocol.acquire_ok,
            lambda id, at: protocol.acquire(
                id,
                name,
                owner,
                reentrant=options.reentrant,
                wait_ms=None if until is None else -(min(at - until, 0) // 1_000_000),
                lease_ms=_ms(options.lease),
                max_hold_ms=_ms(options.max_hold),
                crash_delay_ms=round(options.crash_delay * 1000),
            ),
            now,
        )
        # No calls from here on: after an interrupt the caller has no call to abandon.
        call.leased = lease > 0
        call.lease = lease
        return call

    def confirm(self, hold: Hold, now: int) -> Confirm:
        """Requests the confirmation of a release that was queued just now. A call that cannot be sent is done, with
        the error."""
        call = Confirm(
            "confirm",
            hold.name,
            lambda _: True,
            lambda id, _: protocol.confirm(id, hold.name),
            released=hold,
            sidecar=self._sidecar,
            free_at=self._lease_end(hold, now),
        )
        if hold.era != self._era and self.failure is None:
            call.error, call.done = _unknown_release(), True
            return call
        try:
            self._put(call, now)
        except LocksidecarError as e:
            call.error, call.done = e, True
        return call

    def _lease_end(self, hold: Hold, now: int) -> int:
        """When the lease of hold, which was released, ends in Redis at the latest if Redis does not execute that."""
        told = self._told(hold)
        if hold.lease:
            # The deadline is a hundredth of the lease and 2 ms before the end of the lease; Redis's delay comes on top.
            return told + hold.lease // 50 + 10_000_000
        # The sidecar may just have renewed it, and the lease event may not have been received.
        return max(told, now + self._lease_ns)

    def info(self, name: str) -> Call[protocol.InfoOK]:
        return self._ask("info", name, protocol.info_ok, lambda id, _: protocol.info(id, name))

    def page(self, after: int) -> Call[protocol.ListOK]:
        return self._ask("list", "", protocol.list_ok, lambda id, _: protocol.list_(id, after))

    def force_release(self, name: str) -> Call[protocol.ForceReleaseOK]:
        return self._ask(
            "force_release", name, protocol.force_release_ok, lambda id, _: protocol.force_release(id, name)
        )

    def ping(self) -> Call[protocol.PingOK]:
        return self._ask("ping", "", protocol.ping_ok, lambda id, _: protocol.ping(id))

    def _ask(
        self,
        op: str,
        name: str,
        parse: Callable[[Fields], T],
        encode: Callable[[int, int], bytes],
        now: int = 0,
    ) -> Call[T]:
        """now matters only to who encodes a time."""
        call = Call(op, name, parse, encode)
        self._put(call, now)
        return call

    def _put(self, call: Call[Any], now: int) -> None:
        if self.failure is not None:
            raise _failed(type(self.failure), str(self.failure), False)
        if len(self.unsent) > MAX_UNSENT:
            raise Unavailable(
                f"the sidecar at {self.path} does not read what it is sent; is it stopped or overloaded? "
                "Nothing was sent"
            )
        self._last_id += 1
        call.id = self._last_id
        if self.stage is Stage.SERVING:
            frame = call.encode(call.id, now)
            queued = self._queued + len(frame)
            # No calls from here on: whoever is interrupted has asked nothing, or knows whose answer it is.
            call.end = queued
            self._pending[call.id] = call
            self._queued = queued
            self.unsent += frame
        else:
            self._pending[call.id] = call

    def abandon(self, call: Call[Any], now: int) -> None:
        """Nobody waits for call any more. Whatever it is granted, now or later, is released."""
        if call.done:
            self._undo(call, now)
            return
        call.abandoned = True
        if self.stage is not Stage.SERVING:
            self._drop(call, now)
        elif call.op == "acquire":
            self._send(protocol.cancel(call.id))

    def _undo(self, call: Call[Any], now: int) -> None:
        hold, call.hold = call.hold, None
        if hold is not None:
            self._leave(hold, now)

    def _send(self, frame: bytes | bytearray) -> None:
        self._queued += len(frame)
        self.unsent += frame

    # --- Holds ---

    def deadline(self, hold: Hold) -> int:
        """Until when hold may be believed in: the largest deadline that it was told, or the end of its max_hold."""
        told = self._told(hold)
        return min(told, hold.final) if hold.final else told

    def _told(self, hold: Hold) -> int:
        told = hold.told
        if not hold.leased and hold.told_after != self._leases:
            told = max(told, self._lease)
        return told

    def reason(self, hold: Hold, now: int) -> str:
        """Why hold is lost; "" if it is not."""
        if not hold.lost and hold.entries and now >= self.deadline(hold):
            self._lose(hold, "max_hold" if hold.final and now >= hold.final else "expired")
        return hold.lost

    def leave(self, entry: Entry, now: int) -> str:
        """One entry less, and entry is released. Returns why its hold is lost, "" if it was still good."""
        reason = self.reason(entry.hold, now)
        self._leave(entry.hold, now, entry)
        return reason

    def _leave(self, hold: Hold, now: int, entry: Entry | None = None) -> None:
        known = hold.era == self._era
        serving = self.stage is Stage.SERVING
        frame = protocol.release(hold.number) if known and self.stage >= Stage.CLAIMING else b""
        size = len(frame)
        if known and not serving and self.stage is not Stage.OVER:
            # It may have been renewed up to the end of the connection, without our having heard of it.
            self._owe(max(self.deadline(hold), now + self._lease_ns) + self._lease_ns)
        booked = self._holds.get(hold.number) is hold
        # No calls from here on, so that no handler of a signal raises halfway: who is interrupted
        # can see in the entry whether it has to be done again.
        if entry is not None:
            entry.released = True
        hold.entries -= 1
        if serving:
            self._queued += size
            self.unsent += frame
            if known:
                self._released = self._queued
        else:
            self._behind_claims += frame
        if hold.entries == 0:
            if booked:
                del self._holds[hold.number]
            if not hold.lost:
                self.live -= 1

    def _lose(self, hold: Hold, reason: str) -> None:
        hold.lost = reason
        self.live -= 1
        self.lost.append(hold)

    def live_until(self) -> int:
        """The latest deadline of all holds that are neither released nor lost; 0 if there is none."""
        return max((self.deadline(h) for h in self._holds.values() if not h.lost), default=0)

    # --- What the sidecar says ---

    def receive(self, data: bytes, now: int) -> None:
        """Takes in what was read. Whatever breaks the protocol ends the session."""
        self._received += data
        try:
            while self.stage > Stage.ADRIFT and (body := protocol.split(self._received)) is not None:
                self._take(body, now)
        except ProtocolError as e:
            self.fail(f"the sidecar at {self.path} broke the protocol: {e}.", ProtocolError)
        except Unsupported as e:
            self.fail(str(e), Unsupported)

    def awaits_greeting(self) -> bool:
        """Of a greeting: whether the next bytes are the answer to hello, from its first on."""
        return not self._received

    def unheed(self) -> bool:
        """For who was interrupted while the answer to hello was received: whether it has to be received again.
        If not, all of it was heeded."""
        self._received = bytearray()
        return self.stage is Stage.GREETING

    def _take(self, body: bytes, now: int) -> None:
        # What only looks like a grant goes the long way, where it is found out.
        if (grant := protocol.grant(body)) is not None:
            id, answer = grant
            call = self._pending.get(id)
            if call is not None and call.op == "acquire" and call.end != _UNSENT:
                self._heard = max(self._heard, call.end)
                self._answered(call, answer, now)
                return
        match reply := protocol.decode(body):
            case protocol.Answer(id=id, fields=fields):
                if (step := self._steps.get(id)) is not None:
                    step(fields, now)
                    self._steps.pop(id, None)
                    return
                if self._bye is not None:
                    return  # all but bye has been given up
                # Nothing is marked before all that can be wrong has been checked: what stays
                # pending is told when the session fails.
                call = self._asked(id)
                if isinstance(call, Confirm) and call.awaited is Awaited.INFO:
                    self._on_info(call, protocol.info_ok(fields).lock, now)
                else:
                    self._answered(call, call.parse(fields), now)
            case protocol.Refusal(id=0, code="unavailable"):
                self.end(now)  # it is stopping
            case protocol.Refusal(id=0, code="limit" | "no_hello") if self._ticket and self.stage < Stage.SERVING:
                self.end(now)  # it had no room for us just now, or we were too slow; the session waits for us
            case protocol.Refusal(id=0, code=code, msg=msg):
                self.fail(f"the sidecar at {self.path} ended the connection: {msg} ({code}).", ProtocolError)
            case protocol.Refusal(id=id, code=code, msg=msg):
                if id in self._steps:
                    if self._ticket and code == "unavailable":
                        self.end(now)  # it is stopping
                        return
                    error = _CODES.get(code, LocksidecarError)
                    self.fail(f"the sidecar at {self.path} refused the session: {msg or code}.", error)
                    return
                if self._bye is not None:
                    return
                call = self._asked(id)
                call.error = _refused(call, reply)
                self._finish(call)
            case protocol.LostEvent(hold=number, reason=reason):
                # Unknown: released here while the event was under way.
                hold = self._holds.pop(number, None)
                if hold is not None:
                    hold.era = 0
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
        if call is None or call.end == _UNSENT:
            raise ProtocolError(f"it answered request {id}, which is not waiting for an answer")
        if call.end > self._heard:
            self._heard = call.end
        return call

    def _answered(self, call: Call[Any], answer: object, now: int) -> None:
        call.answer = answer
        if isinstance(answer, protocol.AcquireOK):
            self._granted(call, answer)
        self._finish(call)
        if call.abandoned:
            self._undo(call, now)

    def _finish(self, call: Call[Any]) -> None:
        self._pending.pop(call.id, None)
        call.done = True
        self.done.append(call)

    def _granted(self, call: Call[Any], grant: protocol.AcquireOK) -> None:
        hold = self._holds.get(grant.hold)
        # A hold believed lost stays lost. If the sidecar knows better, its new entry gets a belief of its own.
        if hold is None or hold.lost:
            # A re-entry of a hold that was left here meanwhile does not tell what lease the hold has:
            # then it is good for as long as was told.
            leased = call.leased or grant.count > 1 if hold is None else hold.leased
            hold = Hold(
                grant.hold,
                call.name,
                grant.token,
                grant.deadline_ns,
                leased,
                self._leases,
                self._era,
                grant.end_ns,
                0 if grant.count > 1 else call.lease,
            )
            self._holds[hold.number] = hold
            self.live += 1
        else:
            hold.told = max(self.deadline(hold), grant.deadline_ns)
            hold.told_after = self._leases
        hold.entries += 1
        call.hold = hold

    # --- The end ---

    def close(self, now: int) -> Call[bool]:
        """No more is asked, and what is held is lost: the sidecar will give it away. Bye is said as soon as
        that can be done; the call is done when it was heard, or need not be said."""
        if self._bye is not None:
            return self._bye
        if self.live or self._pending or self._released > self._heard:
            self._owe(max(self.live_until(), now + self._lease_ns) + self._lease_ns)
        for hold in self._holds.values():
            hold.era = 0
            if not hold.lost:
                self._lose(hold, "closed")
        self._holds.clear()
        if self.failure is None:
            self.failure = ClientClosed("The client was closed.")
        self.fail_pending()
        bye = self._bye = Call("bye", "", lambda _: True, lambda id, _: protocol.bye(id))
        if not self._ticket:
            self.part()
        elif self.stage >= Stage.CLAIMING:
            self._say_bye()
        elif self.stage is Stage.OVER:
            self.part()
        return bye

    def _say_bye(self) -> None:
        assert self._bye is not None
        self._last_id += 1
        self._steps[self._last_id] = self._parted
        self._enter(Stage.SERVING, self._bye.encode(self._last_id, 0))

    def _parted(self, _: Fields, now: int) -> None:
        self.part()

    def part(self) -> None:
        """The sidecar knows, or need not be told, that the session has ended."""
        self.debt = 0
        self.stage = Stage.OVER
        if self._bye is not None and not self._bye.done:
            self._bye.answer = True
            self._finish(self._bye)

    def fail(self, why: str, error: type[LocksidecarError] = Unavailable) -> None:
        """No more can be sent or received. Every waiting call ends; holds stay good to their deadlines."""
        if self.failure is None:
            self.failure = error(why)
        self.stage = Stage.OVER
        self.fail_pending()

    def fail_pending(self) -> None:
        """Of a failed session. Whoever was interrupted in it calls it again."""
        if self.failure is None:
            return
        error, why = type(self.failure), str(self.failure)
        first_unsent = self._queued - len(self.unsent)
        for call in list(self._pending.values()):
            if call.done:
                continue
            if isinstance(call, Confirm):
                call.error = _failed(error, why, False)
            elif call.end > first_unsent and not call.sent:
                call.error = _failed(error, f"{why} This {call.op} was not carried out", False)
            elif call.op == "acquire":
                call.error = _failed(error, f"{why} If this acquire was granted, that ended with the session", True)
            else:
                call.error = _failed(error, f"{why} This {call.op} may have been carried out", True)
            self._finish(call)
        self._pending.clear()
        if self.stage is Stage.OVER:
            self.part()
            self._scattered = True
            self._sort(0)


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


def _unknown_release() -> LocksidecarError:
    return LocksidecarError("the sidecar was restarted without its state, and does not know of the release")


def _refused(call: Call[Any], refusal: protocol.Refusal) -> LocksidecarError:
    error = _CODES.get(refusal.code, LocksidecarError)
    if isinstance(call, Confirm):
        if error is Unsupported:
            why = "this sidecar is older than this client and does not confirm releases: upgrade it"
            return Unsupported(why, code=refusal.code)
        return error(refusal.msg or refusal.code, code=refusal.code)
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

    def release_confirmed(self, now: int) -> Confirm:
        """Releases, and queues the request for the confirmation after the release. If this is interrupted,
        released says whether the release is done."""
        self.release(now)
        return self.session.confirm(self.hold, now)

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
    "forgotten": "the sidecar was restarted and knows nothing of it (forgotten)",
    "closed": "this client was closed (closed)",
}
