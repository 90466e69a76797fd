"""The requests of a client. One Call stands for one request, from before it is sent until it is answered."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from . import _protocol as protocol
from ._errors import BadRequest, LocksidecarError, Unconfirmed, Unsupported, sentence
from ._strict import MAX_INT, Fields

# The epoch of a hold that the sidecar no longer has. The epochs of a session start at 1.
NO_EPOCH: Final = 0

# The ops that are not sent again after the end of a connection: they may have been carried out.
UNREPEATABLE: Final = ("force_release", "host_force_release", "force_release_orphaned")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """How to acquire one lock, or permits. Durations are in seconds, and are checked when the Options are made.

    Pickled locks contain an Options: do not rename it, this module or the fields.
    """

    timeout: float | None = None  # None: no limit; -1 becomes None
    lease: float | None = None  # None: the sidecar renews the lock
    max_hold: float | None = None
    crash_delay: float = 0.0
    reentrant: bool = False
    confirm: bool = False  # whether a block waits for the confirmation of its release
    confirm_timeout: float | None = None  # None: no limit
    fair: bool = False
    keep: float = 0.0
    mode: protocol.Mode = ""  # of a read/write lock

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
        _check_duration("keep", self.keep, 0, protocol.MAX_KEEP_MS)
        if self.confirm_timeout is not None:
            _check_duration("confirm_timeout", self.confirm_timeout, 0, protocol.MAX_DURATION_MS)
            if not self.confirm:
                raise BadRequest("confirm_timeout is for a lock with confirm=True; add it, or leave out the timeout")
        if self.keep and self.mode == "shared":
            raise BadRequest("keep is for exclusive holds; leave it out")

    def for_acquire(self, blocking: bool, timeout: float | None) -> Options:
        """With the arguments of one acquire(): those of threading.Lock."""
        if not blocking:
            if timeout is not None and timeout != -1:
                raise ValueError("can't specify a timeout for a non-blocking call")
            return replace(self, timeout=0)
        return self if timeout is None else replace(self, timeout=timeout)

    def for_mode(self, mode: protocol.Mode, timeout: float | None, keep: float = 0.0) -> Options:
        """Of a read/write lock, with the arguments of one read() or write()."""
        return replace(self, mode=mode, keep=keep, timeout=self.timeout if timeout is None else timeout)

    def packed(self) -> protocol.AcquireOptions:
        return protocol.acquire_options(
            reentrant=self.reentrant,
            fair=getattr(self, "fair", False),  # Options of an older pickle lack it
            lease_ms=_ms(self.lease),
            max_hold_ms=_ms(self.max_hold),
            crash_delay_ms=round(self.crash_delay * 1000),
            keep_ms=round(getattr(self, "keep", 0.0) * 1000),  # the same
            mode=getattr(self, "mode", ""),  # the same
        )

    def waits_for_confirm(self, exc: BaseException | None) -> bool:
        """Whether a block that ends with exc waits for the confirmation. After a cancellation or Ctrl-C it does not."""
        return self.confirm and (exc is None or isinstance(exc, (Exception, SystemExit)))


def _check_duration(what: str, seconds: float, least_ms: int, most_ms: int) -> None:
    check_number(what, seconds)
    if not least_ms <= seconds * 1000 <= most_ms:
        raise BadRequest(f"{what} must be from {least_ms / 1000:g} to {most_ms // 1000} seconds, not {seconds!r}")


def check_number(what: str, seconds: float) -> None:
    if not hasattr(seconds, "__float__"):
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")


def make_options(
    timeout: float | None,
    lease: float | None,
    max_hold: float | None,
    crash_delay: float,
    reentrant: bool,
    confirm: bool,
    confirm_timeout: float | None,
    fair: bool,
    keep: float,
) -> Options:
    """Options(…), which is not made again if every argument but reentrant is the default."""
    delays = crash_delay or keep
    if timeout is lease is max_hold is confirm_timeout is None and delays == 0.0 and not confirm and not fair:
        return _PLAIN_REENTRANT if reentrant else _PLAIN
    return Options(timeout, lease, max_hold, crash_delay, reentrant, confirm, confirm_timeout, fair, keep)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


# The Options of a lock that is made with defaults.
_PLAIN: Final = Options()
_PLAIN_REENTRANT: Final = Options(reentrant=True)
_PLAIN_PACKED: Final = _PLAIN.packed()


class HoldMode(IntEnum):
    """How a read/write lock is held.

    ::

        EXCLUSIVE ─── downgrade is requested ───► DOWNGRADING ─── it is answered ───► SHARED
    """

    NONE = 0  # it is of another kind
    EXCLUSIVE = 1  # no other hold exists beside it
    DOWNGRADING = 2  # other shared holds may exist beside it
    SHARED = 3  # the same


@dataclass(slots=True, eq=False)
class Hold:
    """One lock that one owner holds, or some permits. All entries of a re-entrant lock share one Hold.

    ::

                   grant                 release of the last entry
        (Call) ───────────► HELD ───────────────────────────────────► RELEASED
                             │                                            ▲
                             │ lost event, deadline, end of max_hold      │
                             ▼                                            │
                            LOST ─────── release of the last entry ───────┘

    A hold is LOST if lost_reason is set, and RELEASED if entries is 0. Each entry is released once, also after the
    loss.
    """

    number: int
    name: str
    token: int
    own_deadline: int  # the largest deadline received for this hold alone, in its grants
    fixed_lease: bool  # lease events do not apply to it
    lease_events_seen: int  # how many lease events the session had received before the grant
    # The sidecar has the hold under this number if this is the current epoch of the session. That is so even if the
    # hold is LOST here because its deadline passed: the sidecar may have renewed it, so the release is sent.
    epoch: int
    max_hold_end: int = 0  # when max_hold ends; 0: there is no max_hold
    lease_ns: int = 0  # the fixed lease; 0: there is none, or it is not known
    owner: int = 0
    permits: int = 0  # of a semaphore; 0: it is a lock
    entries: int = 0  # that are not released
    lost_reason: str = ""  # "": not LOST
    mode: HoldMode = HoldMode.NONE
    task: object = None  # the task that entered first, if a thread acquired the lock in an event loop

    @property
    def title(self) -> str:
        """What a sentence calls it."""
        what = f"the hold of {self.permits} of the permits of" if self.permits else "the lock"
        return f"{what} {self.name!r}"


class CallState(IntEnum):
    """The phase of a Call.

    ::

              submit()              frame queued              answer
        NEW ───────────► WAITING ─────────────────► QUEUED ────────────► DONE
         │                │   ▲                       │ │                 ▲
         │                │   └── connection lost ────┘ │ failure         │
         └─ abandoned ────┴─ abandoned, failure ────────┴─────────────────┘

    Abandoning a QUEUED call does not end it: an acquire may still be granted, and the grant must be released. The
    calls for bye go from NEW to DONE.
    """

    NEW = 0  # not submitted to a session
    WAITING = 1  # not sent: no connection is SERVING, or the answer to its owner's abandoned acquire is missing
    QUEUED = 2  # its frame is queued on the current connection, or was sent there
    DONE = 3  # final: it has an answer or an error, or it was abandoned and will not be sent


# A global is read in a tenth of the time of a member of an Enum.
QUEUED: Final = CallState.QUEUED
DONE: Final = CallState.DONE


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """One request, from before it is sent until it is answered. It may be sent on several connections in turn.

    A caller first makes the Call and then submits it to the session. So a caller that a signal handler interrupts
    at any point knows which Call to abandon.
    """

    op: str
    name: str
    parse: Callable[[Fields], T]
    encode: Callable[[int, int], bytes]  # makes the frame from an id and the time of sending
    id: int = 0  # on the current connection
    state: CallState = CallState.NEW
    end_offset: int = 0  # QUEUED: where its frame ends among all bytes that the session ever queued
    sent_before: bool = False  # it was sent on an earlier connection
    abandoned: bool = False  # no caller waits for the answer
    answer: T | None = None
    error: LocksidecarError | None = None
    waiters: list[Any] = field(default_factory=list)  # the threads that wait until it is DONE: see SharedSession
    # Of an acquire:
    owner: int = 0
    lease_ns: int = 0  # the fixed lease; 0: there is none
    permits: int = 0  # that it requests; 0: it requests a lock
    mode: protocol.Mode = ""  # of a read/write lock
    hold: Hold | None = None  # the hold that was granted

    @property
    def may_have_been_read(self) -> bool:
        """Whether the sidecar may have read the request."""
        return self.sent_before or self.state is CallState.QUEUED

    @property
    def done(self) -> bool:
        return self.state is DONE

    def with_outcome(self, why: str, outcome: str) -> str:
        """Adds to the text of an error what became of the request. The error of a connect says that itself."""
        return why if self.op == "connect" else f"{why} This {self.op} {outcome}"

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "the call is not done"
        return self.answer


class AwaitedAnswer(IntEnum):
    """The answer that a Confirm waits for.

    ::

        CONFIRM ──(a new session of the same sidecar)──► INFO
           ▲                                              │
           └───────(the sidecar does not have the hold)───┘
    """

    CONFIRM = 0  # the answer to confirm: the release was sent before it, or is known to have been read
    INFO = 1  # the answer to info: a sidecar that still has the hold has not read the release


@dataclass(slots=True, eq=False)
class Downgrade(Call[protocol.DowngradeOK]):
    """The request to share an exclusive hold. It is sent again if the session is resumed, and fails in a new one."""

    of: Hold | None = None


@dataclass(slots=True, eq=False)
class Confirm(Call[bool]):
    """The request for the confirmation of a release. The sidecar answers when Redis has executed the release.

    After a restart, the new sidecar ends the sessions that hold nothing. If it has the same uuid, it still knows
    which releases its predecessor had not executed, and confirms them in a new session. If it still has the hold,
    its predecessor did not read the release, and an answer to confirm would prove nothing.
    """

    released_hold: Hold | None = None
    sidecar_uuid: str = ""  # of the sidecar that executes the release
    awaited: AwaitedAnswer = AwaitedAnswer.CONFIRM
    free_at: int = 0  # the latest time at which the lease ends in Redis

    def unconfirmed_error(self, why: LocksidecarError, now: int) -> Unconfirmed:
        """The error for a release that is not confirmed, because of why."""
        hold = self.released_hold
        assert hold is not None
        left = max(self.free_at - now, 0) / 1e9
        if left:
            free = f"other hosts find it free within {math.ceil(left)} s at the latest, when its lease ends"
        else:
            free = "its lease has ended in Redis meanwhile"
        return Unconfirmed(
            f"the release of {hold.title} is not confirmed: {sentence(str(why))} "
            f"{'The hold' if hold.permits else 'The lock'} is released here, and {free}",
            code=why.code,
            name=self.name,
            free_within=left,
        )


def acquire_call(
    name: str, owner: int, options: Options, now: int, permits: int = 0, of: int = 0
) -> Call[protocol.AcquireOK]:
    """now is the start of the wait; it is used only if options has a timeout. permits: 0: of a lock."""
    packed = _PLAIN_PACKED if options is _PLAIN else options.packed()
    until = None if options.timeout is None else now + round(options.timeout * 1e9)

    def encode(id: int, at: int) -> bytes:
        wait_ms = None if until is None else -(min(at - until, 0) // 1_000_000)
        return protocol.acquire(id, name, owner, packed, wait_ms, permits, of)

    lease = 0 if options.lease is None else round(options.lease * 1e9)
    mode: protocol.Mode = packed.mode
    parse = protocol.rw_ok if mode else protocol.permits_ok if permits else protocol.acquire_ok
    return Call("acquire", name, parse, encode, owner=owner, lease_ns=lease, permits=permits, mode=mode)


def downgrade_call(hold: Hold) -> Downgrade:
    return Downgrade(
        "downgrade", hold.name, protocol.downgrade_ok, lambda id, _: protocol.downgrade(id, hold.number), of=hold
    )


def confirm_call(hold: Hold) -> Confirm:
    """The Confirm for a release of hold. The caller queues the release first."""
    return Confirm(
        "confirm", hold.name, lambda _: True, lambda id, _: protocol.confirm(id, hold.name), released_hold=hold
    )


def info_call(name: str, host: str | None = None) -> Call[protocol.InfoOK]:
    if host is None:
        return Call("info", name, protocol.info_ok, lambda id, _: protocol.info(id, name))
    protocol.check_host(host)
    return Call("host_info", name, protocol.info_ok, lambda id, _: protocol.host_info(id, host, name))


def list_call(after: int, host: str | None = None) -> Call[protocol.ListOK]:
    if host is None:
        return Call("list", "", protocol.list_ok, lambda id, _: protocol.list_(id, after))
    protocol.check_host(host)
    return Call("host_list", "", protocol.list_ok, lambda id, _: protocol.host_list(id, host, after))


def events_call(after: int, wait: bool) -> Call[protocol.EventPage]:
    return Call("events", "", protocol.events_ok, lambda id, _: protocol.events(id, after, wait))


def who_call(name: str) -> Call[protocol.Ownership]:
    return Call("who", name, protocol.who_ok, lambda id, _: protocol.who(id, name))


def status_call(host: str | None = None) -> Call[protocol.Status]:
    if host is not None:
        protocol.check_host(host)
        return Call("host_status", "", protocol.status_ok, lambda id, _: protocol.host_status(id, host))
    return Call("status", "", protocol.status_ok, lambda id, _: protocol.status(id))


def hosts_call(after: str) -> Call[protocol.HostsOK]:
    return Call("hosts", "", protocol.hosts_ok, lambda id, _: protocol.hosts(id, after))


def force_release_call(name: str, host: str | None = None, hold: int | None = None) -> Call[protocol.ForceReleaseOK]:
    parse, number = protocol.force_release_ok, 0 if hold is None else protocol.check_positive("hold", hold, MAX_INT)
    if host is None:
        return Call("force_release", name, parse, lambda id, _: protocol.force_release(id, name, number))
    protocol.check_host(host)
    return Call("host_force_release", name, parse, lambda id, _: protocol.host_force_release(id, host, name, number))


def check_forced(name: str, hold: int | None, ended: protocol.ForceReleaseOK) -> None:
    """Raises Unsupported if another hold has ended than hold: a sidecar ignores fields that it does not know."""
    if hold is not None and ended.hold != hold:
        raise Unsupported(
            f"force_release {name!r}: the sidecar is older than this client, and ended hold {ended.hold} in the place "
            f"of hold {hold}; upgrade it and restart it"
        )


def check_freed(name: str, sidecar: str | None, freed: protocol.OrphanedLock) -> protocol.OrphanedLock:
    """Raises Unsupported if another sidecar had what was freed than sidecar: see check_forced."""
    if sidecar and freed.sidecar != sidecar:
        raise Unsupported(
            f"force_release_orphaned {name!r}: the sidecar of this host is older than this client, and freed what "
            f"sidecar {freed.sidecar} had in the place of {sidecar}; upgrade it and restart it"
        )
    return freed


def force_release_orphaned_call(name: str, sidecar: str | None = None) -> Call[protocol.OrphanedLock]:
    return Call(
        "force_release_orphaned",
        name,
        protocol.force_release_orphaned_ok,
        lambda id, _: protocol.force_release_orphaned(id, name, sidecar),
    )


def metrics_call(after: int) -> Call[protocol.MetricsOK]:
    return Call("metrics", "", protocol.metrics_ok, lambda id, _: protocol.metrics(id, after))


def ping_call() -> Call[protocol.PingOK]:
    return Call("ping", "", protocol.ping_ok, lambda id, _: protocol.ping(id))


def connect_call() -> Call[protocol.PingOK]:
    """A ping whose errors name the connect."""
    return Call("connect", "", protocol.ping_ok, lambda id, _: protocol.ping(id))


def watch_call() -> Call[bool]:
    """It is never sent. A thread that waits for it processes events until Session.end_watch()."""
    return Call("watch", "", lambda _: True, lambda id, _: b"")


def bye_call() -> Call[bool]:
    return Call("bye", "", lambda _: True, lambda id, _: protocol.bye(id))
