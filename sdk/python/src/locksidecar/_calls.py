"""What a client requests: one Call for each request, from before it is sent to its answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from . import _protocol as protocol
from ._errors import BadRequest, LocksidecarError, Unconfirmed, sentence
from ._strict import Fields

# The epoch of a hold that the sidecar does not have any more. Sessions count theirs from 1.
NO_EPOCH: Final = 0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """How to acquire one lock; durations in seconds, checked when made."""

    timeout: float | None = None  # None: without limit; -1 becomes None
    lease: float | None = None  # None: the sidecar renews
    max_hold: float | None = None
    crash_delay: float = 0.0
    reentrant: bool = False
    confirm: bool = False  # at the end of a block
    confirm_timeout: float | None = None  # None: no limit

    def __post_init__(self) -> None:
        if self.timeout == -1:
            object.__setattr__(self, "timeout", None)
        if self.timeout is not None:
            _check_duration("timeout", self.timeout, 0, protocol.MAX_DURATION_MS)
        if self.lease is not None:
            _check_duration("lease", self.lease, protocol.MIN_LEASE_MS, protocol.MAX_DURATION_MS)
        if self.max_hold is not None:
            _check_duration("max_hold", self.max_hold, 1, protocol.MAX_DURATION_MS)
        _check_duration("crash_delay", self.crash_delay, 0, protocol.MAX_CRASH_DELAY_MS)
        if self.confirm_timeout is not None:
            _check_duration("confirm_timeout", self.confirm_timeout, 0, protocol.MAX_DURATION_MS)
            if not self.confirm:
                raise BadRequest("confirm_timeout is for a lock with confirm=True; add it, or leave out the timeout")

    def waits_for_confirm(self, exc: BaseException | None) -> bool:
        """Whether a block that ends with exc waits for the confirmation. Cancellation and Ctrl-C end it at once."""
        return self.confirm and (exc is None or isinstance(exc, (Exception, SystemExit)))


def _check_duration(what: str, seconds: float, least_ms: int, most_ms: int) -> None:
    check_number(what, seconds)
    if not least_ms <= seconds * 1000 <= most_ms:
        raise BadRequest(f"{what} must be from {least_ms / 1000:g} to {most_ms // 1000} seconds, not {seconds!r}")


def check_number(what: str, seconds: float) -> None:
    if not hasattr(seconds, "__float__"):
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


@dataclass(slots=True, eq=False)
class Hold:
    """One lock held by one owner. Several entries (of an rlock) share it."""

    number: int
    name: str
    token: int
    own_deadline: int  # the largest deadline that this hold itself was told
    fixed_lease: bool  # has a fixed lease: lease events do not concern it
    lease_events_seen: int  # lease events that came before the grant
    # The sidecar knows it if this is the session's era. If only the deadline passed here, the sidecar may
    # still keep it, and must be told of the release.
    epoch: int
    max_hold_end: int = 0  # when its max_hold will have passed; 0: it has none
    lease_ns: int = 0  # its fixed lease; 0: it has none, or it is not known
    entries: int = 0  # not released yet
    lost_reason: str = ""  # the reason
    task: object = None  # that entered it first, if a thread did so in an event loop


class CallState(IntEnum):
    """How far a call has come.

    ::

              submit()                  queued                  answer
        NEW ───────────► WAITING ─────────────────► QUEUED ────────────► DONE
         │                │   ▲                       │ │                 ▲
         │                │   └── connection lost ────┘ │                 │
         └── abandon() ───┴── abandon() ──── failure ───┴─────────────────┘
    """

    NEW = 0  # not submitted
    WAITING = 1  # not queued on this connection: it waits until one serves, or for the owner's abandoned acquire
    QUEUED = 2  # its frame is among the bytes of this connection, up to end_offset
    DONE = 3  # it has its answer or its error, or was given up and will not be sent; final


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """One request, from before it is sent to its answer, over as many connections as that takes.

    A caller makes the Call first and has the session send it then. So a caller that a signal handler interrupts
    anywhere knows which Call to abandon.
    """

    op: str
    name: str
    parse: Callable[[Fields], T]
    encode: Callable[[int, int], bytes]  # of an id, and of the time at which it is sent
    id: int = 0  # on this connection
    state: CallState = CallState.NEW
    end_offset: int = 0  # QUEUED: of its bytes, counted over all that the session ever queued
    sent_before: bool = False  # on an earlier connection
    abandoned: bool = False  # its caller does not wait for the answer
    answer: T | None = None
    error: LocksidecarError | None = None
    # Of an acquire:
    owner: int = 0
    fixed_lease: bool = False
    lease_ns: int = 0  # nanoseconds
    hold: Hold | None = None  # what it was granted

    @property
    def may_have_been_read(self) -> bool:
        """Whether the sidecar may have read it."""
        return self.sent_before or self.state is CallState.QUEUED

    @property
    def done(self) -> bool:
        return self.state is CallState.DONE

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "asked before it was done"
        return self.answer


class AwaitedAnswer(IntEnum):
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

    released_hold: Hold | None = None
    sidecar_uuid: str = ""  # the uuid of the sidecar that executes the release
    awaited: AwaitedAnswer = AwaitedAnswer.CONFIRM
    free_at: int = 0  # when the lease ends in Redis, at the latest

    def unconfirmed_error(self, why: LocksidecarError, now: int) -> Unconfirmed:
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


def acquire_call(name: str, owner: int, options: Options, now: int) -> Call[protocol.AcquireOK]:
    """now is the start of the wait; it matters only if options has a timeout."""
    until = None if options.timeout is None else now + round(options.timeout * 1e9)
    lease = 0 if options.lease is None else round(options.lease * 1e9)
    return Call(
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
        owner=owner,
        fixed_lease=lease > 0,
        lease_ns=lease,
    )


def confirm_call(hold: Hold) -> Confirm:
    """For a release of hold that is about to be queued."""
    return Confirm(
        "confirm", hold.name, lambda _: True, lambda id, _: protocol.confirm(id, hold.name), released_hold=hold
    )


def info_call(name: str) -> Call[protocol.InfoOK]:
    return Call("info", name, protocol.info_ok, lambda id, _: protocol.info(id, name))


def list_call(after: int) -> Call[protocol.ListOK]:
    return Call("list", "", protocol.list_ok, lambda id, _: protocol.list_(id, after))


def force_release_call(name: str) -> Call[protocol.ForceReleaseOK]:
    return Call("force_release", name, protocol.force_release_ok, lambda id, _: protocol.force_release(id, name))


def ping_call() -> Call[protocol.PingOK]:
    return Call("ping", "", protocol.ping_ok, lambda id, _: protocol.ping(id))


def bye_call() -> Call[bool]:
    return Call("bye", "", lambda _: True, lambda id, _: protocol.bye(id))
