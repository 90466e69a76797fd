"""The protocol: encodes requests, decodes replies. No I/O, no state.

The names are those of protocol/SPEC.md. Every rule for a sidecar is checked here. A frame that violates one raises
ProtocolError, and costs no more memory than its size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final, Literal, TypeAlias, cast

import msgpack

from ._clock import seconds, wall_time
from ._errors import BadRequest, LossReason, ProtocolError
from ._strict import Fields

VERSION: Final = 1
MAX_FRAME: Final = 65_536
MAX_NAME: Final = 512
MAX_HOST: Final = 128
MAX_DURATION_MS: Final = 2_592_000_000
MIN_LEASE_MS: Final = 50
MAX_CRASH_DELAY_MS: Final = 3_600_000
MAX_KEEP_MS: Final = 86_400_000
MAX_TICKET: Final = 128
MAX_CLAIMS: Final = 4_096
MAX_PERMITS: Final = 65_535

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")

# --- Requests -------------------------------------------------------------------------------------

Field: TypeAlias = "int | str | bool | list[int]"


def frame(message: Mapping[str, Field]) -> bytes:
    body: bytes = msgpack.packb(message)
    return len(body).to_bytes(4, "big") + body


def hello(id: int, client: str, *, resumable: bool = False, resume: str = "") -> bytes:
    message: dict[str, Field] = {"op": "hello", "id": id, "v": VERSION, "client": client}
    if resumable:
        message["resumable"] = True
    if resume:
        message["resume"] = resume
    return frame(message)


def claim(id: int, holds: list[int], *, more: bool = False) -> bytes:
    """holds: hold, entries, hold, entries, …"""
    message: dict[str, Field] = {"op": "claim", "id": id, "holds": holds}
    if more:
        message["more"] = True
    return frame(message)


def bye(id: int) -> bytes:
    return frame({"op": "bye", "id": id})


Mode: TypeAlias = Literal["", "shared", "exclusive"]
"""How a read/write lock is requested; "": another kind is."""


@dataclass(frozen=True, slots=True)
class AcquireOptions:
    """The fields of an acquire that are the same for each acquire of a lock, packed."""

    fields: int  # how many they are
    flags: bytes
    durations: bytes
    mode: Mode = ""


def acquire_options(
    *,
    reentrant: bool = True,
    fair: bool = False,
    lease_ms: int | None = None,
    max_hold_ms: int | None = None,
    crash_delay_ms: int = 0,
    keep_ms: int = 0,
    mode: Mode = "",
) -> AcquireOptions:
    fields = 0
    flags = durations = b""
    if not reentrant:
        fields += 1
        flags += b"\xa9reentrant\xc2"
    if fair:
        fields += 1
        flags += b"\xa4fair\xc3"
    if lease_ms is not None:
        fields += 1
        durations += b"\xa8lease_ms" + _packed_int(lease_ms)
    if max_hold_ms is not None:
        fields += 1
        durations += b"\xabmax_hold_ms" + _packed_int(max_hold_ms)
    if crash_delay_ms:
        fields += 1
        durations += b"\xaecrash_delay_ms" + _packed_int(crash_delay_ms)
    if keep_ms:
        fields += 1
        durations += b"\xa7keep_ms" + _packed_int(keep_ms)
    return AcquireOptions(fields, flags, durations, mode)


def acquire(
    id: int,
    name: str,
    owner: int,
    options: AcquireOptions,
    wait_ms: int | None = None,
    permits: int = 0,
    of: int = 0,
) -> bytes:
    """acquire; with a mode, acquire_rw; with permits, of so many, acquire_permits."""
    # The hot path: the constant parts of the map are packed in advance.
    fields = 3 + options.fields
    op = _ACQUIRE_RW if options.mode else _ACQUIRE_PERMITS if permits else _ACQUIRE
    body = op + _packed_int(id) + b"\xa4name" + _packed_text(name.encode())
    if options.mode == "shared":
        fields += 1
        body += b"\xa6shared\xc3"
    if owner:
        fields += 1
        body += b"\xa5owner" + _packed_int(owner)
    if permits:
        fields += 1
        if permits > 1:
            fields += 1
            body += b"\xa7permits" + _packed_int(permits)
        body += b"\xa2of" + _packed_int(of)
    body += options.flags
    if wait_ms is not None:
        fields += 1
        body += b"\xa7wait_ms" + _packed_int(wait_ms)
    body += options.durations
    return _FRAME_HEAD(len(body) + 1, 0x80 | fields) + body


_ACQUIRE: Final = b"\xa2op\xa7acquire\xa2id"
_ACQUIRE_RW: Final = b"\xa2op\xaaacquire_rw\xa2id"
_ACQUIRE_PERMITS: Final = b"\xa2op\xafacquire_permits\xa2id"
_FRAME_LENGTH: Final = struct.Struct(">I").unpack_from
_FRAME_HEAD: Final = struct.Struct(">IB").pack  # the length of the body, and its first byte
_FIXINT: Final = tuple(bytes((n,)) for n in range(128))
_PACK_8: Final = struct.Struct(">BB").pack
_PACK_16: Final = struct.Struct(">BH").pack
_PACK_32: Final = struct.Struct(">BI").pack
_PACK_64: Final = struct.Struct(">BQ").pack


def _packed_int(n: int) -> bytes:
    """msgpack.packb(n) for an integer from 0 on: that makes a Packer for each value."""
    if n < 128:
        return _FIXINT[n]
    if n < 1 << 16:
        return _PACK_16(0xCD, n) if n > 255 else _PACK_8(0xCC, n)
    return _PACK_32(0xCE, n) if n < 1 << 32 else _PACK_64(0xCF, n)


def _packed_text(utf8: bytes) -> bytes:
    size = len(utf8)
    if size < 32:
        return _FIXSTR[size] + utf8
    return (_PACK_8(0xD9, size) if size < 256 else _PACK_16(0xDA, size)) + utf8


_FIXSTR: Final = tuple(bytes((0xA0 | n,)) for n in range(32))


def release(hold: int) -> bytes:
    """Without an id, so it is not answered and costs no round trip."""
    number = _packed_int(hold)
    return _RELEASE_HEADS[len(number)] + number


# By the size of the packed number.
_RELEASE_HEADS: Final = tuple(
    _FRAME_HEAD(len(b" \xa2op\xa7release\xa4hold") + n, 0x82) + b"\xa2op\xa7release\xa4hold" for n in range(10)
)


def downgrade(id: int, hold: int) -> bytes:
    return frame({"op": "downgrade", "id": id, "hold": hold})


def confirm(id: int, name: str) -> bytes:
    return frame({"op": "confirm", "id": id, "name": name})


def cancel(target: int) -> bytes:
    """Without an id, so it is not answered: the answer to the acquire tells the result."""
    return frame({"op": "cancel", "target": target})


def info(id: int, name: str) -> bytes:
    return frame({"op": "info", "id": id, "name": name})


def list_(id: int, after: int) -> bytes:
    return frame({"op": "list", "id": id, "after": after} if after else {"op": "list", "id": id})


def events(id: int, after: int, wait: bool) -> bytes:
    message: dict[str, int | str | bool] = {"op": "events", "id": id}
    if after:
        message["after"] = after
    if wait:
        message["wait"] = True
    return frame(message)


def status(id: int) -> bytes:
    return frame({"op": "status", "id": id})


def force_release(id: int, name: str, hold: int = 0) -> bytes:
    """hold: 0: all holds of the name."""
    return frame(_with_hold({"op": "force_release", "id": id, "name": name}, hold))


def _with_hold(message: dict[str, Field], hold: int) -> dict[str, Field]:
    return {**message, "hold": hold} if hold else message


def metrics(id: int, after: int) -> bytes:
    return frame({"op": "metrics", "id": id, "after": after} if after else {"op": "metrics", "id": id})


def hosts(id: int, after: str) -> bytes:
    return frame({"op": "hosts", "id": id, "after_host": after} if after else {"op": "hosts", "id": id})


def host_info(id: int, host: str, name: str) -> bytes:
    return frame({"op": "host_info", "id": id, "host": check_host(host), "name": name})


def host_list(id: int, host: str, after: int) -> bytes:
    message: dict[str, Field] = {"op": "host_list", "id": id, "host": check_host(host)}
    if after:
        message["after"] = after
    return frame(message)


def host_status(id: int, host: str) -> bytes:
    return frame({"op": "host_status", "id": id, "host": check_host(host)})


def host_force_release(id: int, host: str, name: str, hold: int = 0) -> bytes:
    return frame(_with_hold({"op": "host_force_release", "id": id, "host": check_host(host), "name": name}, hold))


def force_release_orphaned(id: int, name: str, sidecar: str | None = None) -> bytes:
    message: dict[str, Field] = {"op": "force_release_orphaned", "id": id, "name": name}
    return frame({**message, "sidecar": sidecar} if sidecar else message)


def who(id: int, name: str) -> bytes:
    return frame({"op": "who", "id": id, "name": name})


def ping(id: int) -> bytes:
    return frame({"op": "ping", "id": id})


def check_name(name: str) -> str:
    """Returns name if it is valid for a lock; raises BadRequest or TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a lock must be a str, not {type(name).__name__}")
    if name.isascii() and name.isprintable() and 0 < len(name) <= MAX_NAME:
        return name
    try:
        size = len(name.encode())
    except UnicodeEncodeError as e:
        raise BadRequest(f"the name of a lock must be valid Unicode: {name!r} {e.reason}") from None
    if size == 0:
        raise BadRequest("the name of a lock must not be empty")
    if size > MAX_NAME:
        raise BadRequest(f"the name of a lock may have at most {MAX_NAME} bytes of UTF-8, not {size}")
    if _CONTROL.search(name):
        raise BadRequest(f"the name of a lock must not contain control characters: {name!r}")
    return name


def check_host(host: str) -> str:
    """Returns host if it can be the name of a host or a uuid; raises BadRequest or TypeError."""
    if not isinstance(host, str):
        raise TypeError(f"the name of a host must be a str, not {type(host).__name__}")
    if not 0 < len(host.encode(errors="replace")) <= MAX_HOST:
        raise BadRequest(f"the name of a host has 1 to {MAX_HOST} bytes of UTF-8: {host!r}")
    return host


def check_prefix(prefix: str) -> str:
    """Returns prefix if names of locks can begin with it, or if it is empty; raises BadRequest or TypeError."""
    return check_name(prefix) if prefix or not isinstance(prefix, str) else prefix


def check_positive(what: str, number: int, most: int) -> int:
    """Returns number if it is an integer from 1 to most; raises BadRequest or TypeError."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{what} must be an int, not {number!r}")
    if not 1 <= number <= most:
        raise BadRequest(f"{what} must be from 1 to {most}, not {number}")
    return number


# --- Replies --------------------------------------------------------------------------------------
#
# A time is a number of the protocol, and a property with a datetime or with seconds beside it.

LockState: TypeAlias = Literal["held", "remote", "busy", "lingering", "free"]
"""LockInfo.state. A later sidecar may have others."""

LockKind: TypeAlias = Literal["lock", "rw", "permits"]
"""LockInfo.kind: "rw" is a read/write lock, "permits" a semaphore. A later sidecar may have others."""

KeyKind: TypeAlias = Literal["free", "lock", "permits", "read_write", "other", ""]
"""Ownership.key. A later sidecar may have others."""

EventKind: TypeAlias = Literal[
    "granted",
    "released",
    "crashed",
    "lost",
    "forced",
    "force_refused",
    "deadlock",
    "takeover",
    "redis_down",
    "redis_degraded",
    "redis_up",
    "data_lost",
    "slots_open",
    "slots_closed",
]
"""Event.kind. A later sidecar may have others."""


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """One local waiter of a lock. shared: of a read/write lock. permits: how many it waits for, of a semaphore."""

    session: int = 0
    pid: int = 0
    uid: int = 0
    cmd: str = ""
    owner: int = 0
    waited_ms: int = 0
    permits: int = 0
    shared: bool = False

    @property
    def waited_seconds(self) -> float:
        return self.waited_ms / 1000


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """One hold of a read/write lock or of permits of a semaphore, and its holder. absent, orphan: as in LockInfo."""

    hold: int = 0
    token: int = 0
    permits: int = 0
    session: int = 0
    pid: int = 0
    uid: int = 0
    cmd: str = ""
    held_ms: int = 0
    absent: bool = False
    orphan: bool = False
    shared: bool = False

    @property
    def held_seconds(self) -> float:
        return self.held_ms / 1000


@dataclass(frozen=True, slots=True)
class LockInfo:
    """What the sidecar knows about one lock, read/write lock or semaphore.

    state is one of

    - "held": by a process of this host; the fields from hold to lease_ms describe the hold and its holder;
    - "remote": held elsewhere; remote_field and remote_ttl_ms are set, and remote_host if a sidecar has it and the name
      of its host is known;
    - "busy": an operation on Redis is in flight;
    - "lingering": no process holds it, and the sidecar keeps it in Redis for a moment after a release;
    - "free".

    A later sidecar may have other states.

    lease_ms is 0 for a hold that the sidecar renews. absent: the sidecar was restarted absent_ms ago, and the holder
    has not reconnected yet; the hold is renewed for another absent_left_ms, 0: not any more. orphan: no client has the
    hold any more, and the lock is still kept. keep_left_ms: how much longer the keep of the hold lasts; 0: it has none,
    or it is over. grants: how often an owner on this host got the lock since the sidecar knows the name. If Redis is a
    Cluster, slot is that of the name, and shard is host and port of the master that has it; "" if none has it.
    Otherwise slot is None.

    Of a read/write lock or a semaphore, the fields from hold to lease_ms are those of the oldest hold. held counts the
    holds of this host, shared those that are shared, and permits is the sum of their permits. of is the largest number
    of permits that a holder or waiter of this host has named. holders has the oldest 16 holds.
    """

    name: str
    state: LockState
    hold: int = 0
    token: int = 0
    count: int = 0
    owner: int = 0
    session: int = 0
    pid: int = 0
    uid: int = 0
    cmd: str = ""
    held_ms: int = 0
    deadline_ns: int = 0
    lease_ms: int = 0
    absent: bool = False
    orphan: bool = False
    remote_field: str = ""
    remote_ttl_ms: int = 0
    grants: int = 0
    remote_host: str = ""
    waiting: int = 0
    waiters: tuple[WaiterInfo, ...] = ()
    keep_left_ms: int = 0
    slot: int | None = None
    shard: str = ""
    absent_ms: int = 0
    absent_left_ms: int = 0
    kind: LockKind = "lock"
    held: int = 0
    permits: int = 0
    of: int = 0
    holders: tuple[HolderInfo, ...] = ()
    shared: int = 0

    @property
    def held_seconds(self) -> float:
        return self.held_ms / 1000

    @property
    def deadline_at(self) -> datetime | None:
        """The deadline by the wall clock of this host, in UTC; None: no process of this host holds the lock."""
        return wall_time(self.deadline_ns) if self.deadline_ns else None

    @property
    def lease_seconds(self) -> float:
        return self.lease_ms / 1000

    @property
    def keep_left_seconds(self) -> float:
        return self.keep_left_ms / 1000

    @property
    def absent_seconds(self) -> float:
        return self.absent_ms / 1000

    @property
    def absent_left_seconds(self) -> float:
        return self.absent_left_ms / 1000

    @property
    def remote_ttl_seconds(self) -> float | None:
        """None: the key does not expire."""
        return seconds(self.remote_ttl_ms)


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a lock.

    kind is one of

    - "granted": a request that had waited for at least 10 ms was granted;
    - "released": a hold of at least 1 s ended, or one of at least 10 ms while requests waited, as many as count;
    - "crashed": a client ended, or left, with a hold;
    - "lost": a hold ended without a release; reason says why;
    - "forced": a client ended a hold by force; remote_host: the host of the client, if it is another one;
    - "force_refused": a client was not permitted to do that; msg says why;
    - "deadlock": a request was refused, because it would have closed a wait cycle; count: how often,
      if it happened again in the same way, also of "force_refused";
    - "takeover": the sidecar was restarted, and continues with the holds of its predecessor, as many as count;
    - "redis_down": the connection to Redis ended; msg says why;
    - "redis_degraded": Redis is connected, and refuses what locks need; msg says why;
    - "redis_up": that has ended;
    - "data_lost": Redis may have lost data;
    - "slots_open": slots of a Redis Cluster stay open; msg names them;
    - "slots_closed": none is any more.

    A later sidecar may have other kinds. session, pid, uid and cmd are those of the holder, of the client that forced
    the release, or of the one that was refused. remote_host: the host of remote_field, if it is known. permits are
    those of the hold, of a semaphore. shared: the hold was a shared one of a read/write lock. at_ns is a time of
    CLOCK_BOOTTIME.
    """

    at_ns: int
    kind: EventKind
    name: str = ""
    hold: int = 0
    token: int = 0
    session: int = 0
    pid: int = 0
    uid: int = 0
    cmd: str = ""
    waited_ms: int = 0
    held_ms: int = 0
    reason: LossReason | Literal[""] = ""
    remote_field: str = ""
    count: int = 0
    msg: str = ""
    remote_host: str = ""
    permits: int = 0
    shared: bool = False

    @property
    def at(self) -> datetime:
        """When it happened, by the wall clock of this host, in UTC."""
        return wall_time(self.at_ns)

    @property
    def waited_seconds(self) -> float:
        return self.waited_ms / 1000

    @property
    def held_seconds(self) -> float:
        return self.held_ms / 1000


@dataclass(frozen=True, slots=True)
class EventPage:
    """A part of the events that the sidecar has in memory, in the order in which they happened.

    next is the value of after for the next request. missed is the number of events that the sidecar does not have any
    more. hidden says in one sentence which events the policy hides from this process; "" if it hides none.
    """

    events: tuple[Event, ...]
    next: int
    missed: int = 0
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class Oldest:
    """The waiter that has waited, or the hold that has lasted, for the longest time."""

    name: str
    session: int = 0
    pid: int = 0
    uid: int = 0
    cmd: str = ""
    age_ms: int = 0

    @property
    def age_seconds(self) -> float:
        return self.age_ms / 1000


@dataclass(frozen=True, slots=True)
class Restart:
    """What the daemon found of its predecessor when it was started.

    reason: why the state could not be used; "" if it was used. held: the holds that were taken over. sessions: those
    whose clients may come back. ended: those whose processes had ended. back and away: how many clients have come back,
    and have not.
    """

    reason: str = ""
    held: int = 0
    sessions: int = 0
    ended: int = 0
    back: int = 0
    away: int = 0


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One master of a Redis Cluster that has slots, or the slots that have no master.

    address is host and port; "" if no master has these slots. slots is how many there are. redis is "ok", or a sentence
    that says what is wrong. degraded: the master is connected, but refuses what locks need. roundtrip_ns is how long
    the last command took that it answered. held and waiting count the holds and waiters of locks with these slots.
    unsent counts the operations that wait to be sent to the master.
    """

    address: str
    slots: int
    redis: str
    degraded: bool = False
    roundtrip_ns: int = 0
    held: int = 0
    waiting: int = 0
    unsent: int = 0

    @property
    def roundtrip_seconds(self) -> float:
        return self.roundtrip_ns / 1e9


@dataclass(frozen=True, slots=True)
class Status:
    """How the sidecar and its locks are.

    redis is "ok", or a sentence that says what is wrong. degraded: Redis is connected, but refuses what locks need.
    redis_risk names what endangers locks while Redis serves, such as settings; "" if nothing is known. trouble
    says why clients cannot connect, or why a restart would end their locks. renewals_late counts the holds that have
    less than half of their lease left. lost has the losses of the last hour by reason. restart is None if no sidecar
    before this one left its state. hidden says in one sentence what the policy hides from this process; "" if it hides
    nothing: without oldest_waiter or oldest_hold there may be one then. build is the commit that the sidecar was built
    from; "" if it is not known.

    shards has the masters of a Redis Cluster, those in trouble first, 64 at most, and shard_count is how many there
    are. If Redis is no Cluster, shards is empty.
    """

    now_ns: int
    started_ns: int
    version: str
    redis: str
    sessions: int
    held: int
    waiting: int
    redis_address: str = ""
    redis_run_id: str = ""
    key_prefix: str = ""
    roundtrip_ns: int = 0
    trouble: str = ""
    oldest_waiter: Oldest | None = None
    oldest_hold: Oldest | None = None
    renewals_late: int = 0
    lost: dict[LossReason, int] = field(default_factory=dict)
    restart: Restart | None = None
    degraded: bool = False
    hidden: str = ""
    redis_risk: str = ""
    shards: tuple[ShardStatus, ...] = ()
    shard_count: int = 0
    build: str = ""

    @property
    def at(self) -> datetime:
        """When the sidecar answered, by the wall clock of this host, in UTC."""
        return wall_time(self.now_ns)

    @property
    def started_at(self) -> datetime:
        """When the sidecar was started."""
        return wall_time(self.started_ns)

    @property
    def roundtrip_seconds(self) -> float:
        return self.roundtrip_ns / 1e9


@dataclass(frozen=True, slots=True)
class HostInfo:
    """A sidecar that uses the same Redis with the same key prefix. started_ms is Unix time."""

    sidecar: str
    host: str
    version: str = ""
    pid: int = 0
    started_ms: int = 0

    @property
    def started_at(self) -> datetime | None:
        """By the wall clock of that host, in UTC; None: it is not known."""
        return datetime.fromtimestamp(self.started_ms / 1000, timezone.utc) if self.started_ms else None


@dataclass(frozen=True, slots=True)
class LockOwner:
    """An owner of a lock in Redis, or a host in its queue.

    field: the owner field in Redis. sidecar: the uuid of the sidecar; "" for a foreign client. host: the name of its
    host; "" if it is not known. entries is of an owner, waited_ms of a host in the queue.

    Of a semaphore, permits are those that the host has, or those that it waits for. held is the number of holds of the
    host, and holders has the oldest of them, if its sidecar answered.
    """

    field: str
    sidecar: str = ""
    host: str = ""
    entries: int = 0
    waited_ms: int = 0
    permits: int = 0
    holders: tuple[HolderInfo, ...] = ()
    held: int = 0

    @property
    def waited_seconds(self) -> float:
        return self.waited_ms / 1000


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who has a lock, or permits of a semaphore, and who waits, on all hosts.

    redis is "ok", or a sentence about why Redis was not read. key is what Redis has: "free", "lock", "permits" (a
    semaphore), "read_write" (msg is its mode) or "other" (msg describes it); "" if Redis was not read. ttl_ms is -1 if
    the key does not expire. queue has the first 32 hosts that wait, in the order in which they get the lock, and queued
    how many there are. Of a semaphore, owners has the first 32 hosts with permits, permits are those of all hosts
    together, and of is the largest number of permits that a holder or waiter is known to have named.

    holder is the lock as the sidecar of the owner knows it, and lock as the sidecar of this host does. trouble says why
    there is no holder, although a sidecar owns the key.
    """

    redis: str
    lock: LockInfo | None = None
    key: KeyKind = ""
    msg: str = ""
    ttl_ms: int = 0
    owners: tuple[LockOwner, ...] = ()
    queue: tuple[LockOwner, ...] = ()
    queued: int = 0
    holder: LockInfo | None = None
    trouble: str = ""
    permits: int = 0
    of: int = 0

    @property
    def ttl_seconds(self) -> float | None:
        """None: the key does not expire."""
        return seconds(self.ttl_ms)


@dataclass(frozen=True, slots=True)
class OrphanedLock:
    """A lock that force_release_orphaned() has freed, or the permits of one sidecar.

    sidecar is the uuid of the sidecar that had it, hold the number of its hold; of permits, of its claim. Redis would
    have freed the lock after ttl_ms; -1: never. passed: it passed to a host that waited. permits: of a semaphore, those
    that became free, or passed to hosts that waited; of a lock 0.
    """

    sidecar: str
    hold: int
    ttl_ms: int = 0
    passed: bool = False
    permits: int = 0

    @property
    def ttl_seconds(self) -> float | None:
        """None: Redis would never have freed it."""
        return seconds(self.ttl_ms)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request that was carried out. The parser of its Call reads the fields."""

    id: int
    fields: Fields


@dataclass(slots=True)
class Refusal:
    """The error that answers a request: it had no effect. With id 0: the sidecar is closing the connection."""

    id: int
    code: str
    msg: str


@dataclass(slots=True)
class LostEvent:
    hold: int
    reason: str


@dataclass(slots=True)
class LeaseEvent:
    deadline_ns: int


@dataclass(slots=True)
class UnknownEvent:
    """An event of a later version. It is ignored."""

    ev: str


Reply: TypeAlias = "Answer | Refusal | LostEvent | LeaseEvent | UnknownEvent"


def split(received: bytes, start: int) -> tuple[bytes, int] | None:
    """Returns the body of the frame that begins at start, and where the frame ends; None if it is incomplete.

    A bad length raises ProtocolError as soon as its four bytes have arrived.
    """
    begin = start + 4
    if len(received) < begin:
        return None
    (length,) = _FRAME_LENGTH(received, start)
    if not 0 < length <= MAX_FRAME:
        if (text := received[begin - 4 : begin]).isascii() and text.decode().isprintable():
            raise ProtocolError(f"it sent text that begins with {text.decode()!r}, and no frame")
        raise ProtocolError(f"it sent a frame of {length} bytes; 1 to {MAX_FRAME} are allowed")
    end = begin + length
    if len(received) < end:
        return None
    return received[begin:end], end


def decode(body: bytes) -> Reply:
    """Decodes the body of one frame."""
    fields = Fields(body, _KNOWN)
    if "ev" in fields:
        match ev := fields.text("ev"):
            case "lost":
                return LostEvent(fields.integer("hold"), fields.text("reason"))
            case "lease":
                return LeaseEvent(fields.integer("deadline_ns"))
            case _:
                return UnknownEvent(ev)
    if "err" in fields:
        id = fields.integer("id", least=1) if "id" in fields else 0
        error = fields.map("err")
        return Refusal(id, error.text("code"), error.text("msg", ""))
    return Answer(fields.integer("id", least=1), fields)


# --- The fields of answers ------------------------------------------------------------------------
#
# There are none for release and cancel, because this client sends them without an id. The answers to claim, confirm and
# bye have no fields.


@dataclass(frozen=True, slots=True)
class HelloOK:
    v: int
    sidecar: str
    version: str
    session: int
    lease_ms: int
    now_ns: int
    ticket: str = ""  # "": the session cannot be resumed
    resumed: bool = False
    msg: str = ""  # why the session of the ticket was ended; "": it was not


@dataclass(slots=True)
class AcquireOK:
    token: int
    hold: int
    count: int
    deadline_ns: int
    end_ns: int = 0  # when max_hold ends; 0: there is no max_hold
    permits: int = 0  # of a semaphore
    of: int = 0  # how many there are for this hold
    shared: bool = False  # of a read/write lock


@dataclass(frozen=True, slots=True)
class DowngradeOK:
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class InfoOK:
    lock: LockInfo | None


@dataclass(frozen=True, slots=True)
class ListOK:
    locks: tuple[LockInfo, ...]
    next: int  # 0: this was the last page


@dataclass(frozen=True, slots=True)
class ForceReleaseOK:
    hold: int
    count: int = 0  # how many holds were ended; 0: one


@dataclass(frozen=True, slots=True)
class MetricsOK:
    text: str
    next: int  # 0: this was the last page


@dataclass(frozen=True, slots=True)
class HostsOK:
    hosts: tuple[HostInfo, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class PingOK:
    now_ns: int
    redis: str
    redis_address: str
    redis_run_id: str
    key_prefix: str
    degraded: bool
    trouble: str
    redis_risk: str


def hello_ok(f: Fields) -> HelloOK:
    return HelloOK(
        v=f.integer("v"),
        sidecar=f.text("sidecar"),
        version=f.text("version"),
        session=f.integer("session"),
        lease_ms=f.integer("lease_ms"),
        now_ns=f.integer("now_ns"),
        ticket=f.text("ticket", "", most=MAX_TICKET),
        resumed=f.flag("resumed", False),
        msg=f.text("msg", ""),
    )


def acquire_ok(f: Fields) -> AcquireOK:
    return AcquireOK(
        token=f.integer("token"),
        hold=f.integer("hold"),
        count=f.integer("count", most=_MAX_COUNT),
        deadline_ns=f.integer("deadline_ns"),
        end_ns=f.integer("end_ns", 0),
    )


def permits_ok(f: Fields) -> AcquireOK:
    answer = acquire_ok(f)
    answer.permits = _permits(f, "permits")
    answer.of = _permits(f, "of")
    return answer


def rw_ok(f: Fields) -> AcquireOK:
    answer = acquire_ok(f)
    answer.shared = f.flag("shared", False)
    return answer


def downgrade_ok(f: Fields) -> DowngradeOK:
    return DowngradeOK(f.integer("deadline_ns"))


def _permits(f: Fields, key: str) -> int:
    return f.integer(key, 0, most=MAX_PERMITS)


def grant(body: bytes) -> tuple[int, Callable[[Fields], AcquireOK], AcquireOK] | None:
    """The fast path for a grant: returns its id, a parser, and what this parser returns for it.

    The parser is acquire_ok() or permits_ok(). None: body is something else, or unusual, or invalid; decode() decides.
    What is accepted here violates no rule, because it has exactly one layout.
    """
    if _GRANT.fullmatch(body) is not None:
        id, token, hold, count, deadline_ns = msgpack.unpackb(body).values()
        return id, acquire_ok, AcquireOK(token, hold, count, deadline_ns)
    if _GRANT_OF_PERMITS.fullmatch(body) is not None:
        id, token, hold, count, deadline_ns, permits, of = msgpack.unpackb(body).values()
        return id, permits_ok, AcquireOK(token, hold, count, deadline_ns, 0, permits, of)
    return None


def info_ok(f: Fields) -> InfoOK:
    return InfoOK(_lock(f.map("lock")) if "lock" in f else None)


def list_ok(f: Fields) -> ListOK:
    return ListOK(tuple([_lock(row) for row in f.maps("locks")]), f.integer("next", 0))


def force_release_ok(f: Fields) -> ForceReleaseOK:
    return ForceReleaseOK(f.integer("hold"), f.integer("count", 0, most=_MAX_COUNT))


def force_release_orphaned_ok(f: Fields) -> OrphanedLock:
    return OrphanedLock(
        sidecar=f.text("sidecar"),
        hold=f.integer("hold"),
        ttl_ms=f.integer("ttl_ms", 0, least=-1),
        passed=f.flag("passed", False),
        permits=f.integer("permits", 0),
    )


def metrics_ok(f: Fields) -> MetricsOK:
    return MetricsOK(f.text("text"), f.integer("next", 0))


def events_ok(f: Fields) -> EventPage:
    return EventPage(
        tuple([_event(e) for e in f.maps("events")]), f.integer("next"), f.integer("missed", 0), f.text("hidden", "")
    )


def status_ok(f: Fields) -> Status:
    return Status(
        now_ns=f.integer("now_ns"),
        started_ns=f.integer("started_ns"),
        version=f.text("version"),
        redis=f.text("redis"),
        sessions=f.integer("sessions"),
        held=f.integer("held"),
        waiting=f.integer("waiting"),
        redis_address=f.text("redis_address", ""),
        redis_run_id=f.text("redis_run_id", ""),
        key_prefix=f.text("key_prefix", ""),
        roundtrip_ns=f.integer("roundtrip_ns", 0),
        trouble=f.text("trouble", ""),
        oldest_waiter=_oldest(f.map("oldest_waiter")) if "oldest_waiter" in f else None,
        oldest_hold=_oldest(f.map("oldest_hold")) if "oldest_hold" in f else None,
        renewals_late=f.integer("renewals_late", 0),
        lost=dict(map(_loss, f.maps("lost"))) if "lost" in f else {},
        restart=_restart(f.map("restart")) if "restart" in f else None,
        degraded=f.flag("degraded", False),
        redis_risk=f.text("redis_risk", ""),
        hidden=f.text("hidden", ""),
        shards=tuple([_shard(row) for row in f.maps("shards")]) if "shards" in f else (),
        shard_count=f.integer("shard_count", 0),
        build=f.text("build", ""),
    )


def _shard(f: Fields) -> ShardStatus:
    return ShardStatus(
        address=f.text("address", ""),
        slots=f.integer("slots"),
        redis=f.text("redis"),
        degraded=f.flag("degraded", False),
        roundtrip_ns=f.integer("roundtrip_ns", 0),
        held=f.integer("held", 0),
        waiting=f.integer("waiting", 0),
        unsent=f.integer("unsent", 0),
    )


def hosts_ok(f: Fields) -> HostsOK:
    return HostsOK(tuple([_host(row) for row in f.maps("hosts")]), f.flag("more", False))


def _host(f: Fields) -> HostInfo:
    return HostInfo(
        sidecar=f.text("sidecar"),
        host=f.text("host"),
        version=f.text("version", ""),
        pid=f.integer("pid", 0),
        started_ms=f.integer("started_ms", 0),
    )


def who_ok(f: Fields) -> Ownership:
    return Ownership(
        redis=f.text("redis"),
        lock=_lock(f.map("lock")) if "lock" in f else None,
        key=cast(KeyKind, f.text("key", "")),
        msg=f.text("msg", ""),
        ttl_ms=f.integer("ttl_ms", 0, least=-1),
        owners=_lock_owners(f, "owners"),
        queue=_lock_owners(f, "queue"),
        queued=f.integer("queued", 0),
        holder=_lock(f.map("holder")) if "holder" in f else None,
        trouble=f.text("trouble", ""),
        permits=f.integer("permits", 0),
        of=_permits(f, "of"),
    )


def _lock_owners(f: Fields, key: str) -> tuple[LockOwner, ...]:
    if key not in f:
        return ()
    return tuple(
        [
            LockOwner(
                field=row.text("field"),
                sidecar=row.text("sidecar", ""),
                host=row.text("host", ""),
                entries=row.integer("entries", 0),
                waited_ms=row.integer("waited_ms", 0),
                permits=row.integer("permits", 0),
                holders=_holders(row),
                held=row.integer("held", 0),
            )
            for row in f.maps(key)
        ]
    )


def ping_ok(f: Fields) -> PingOK:
    return PingOK(
        f.integer("now_ns"),
        f.text("redis"),
        f.text("redis_address", ""),
        f.text("redis_run_id", ""),
        f.text("key_prefix", ""),
        f.flag("degraded", False),
        f.text("trouble", ""),
        f.text("redis_risk", ""),
    )


def _lock(f: Fields) -> LockInfo:
    return LockInfo(
        name=f.text("name"),
        state=cast(LockState, f.text("state")),
        hold=f.integer("hold", 0),
        token=f.integer("token", 0),
        count=f.integer("count", 0, most=_MAX_COUNT),
        owner=f.integer("owner", 0),
        session=f.integer("session", 0),
        pid=f.integer("pid", 0),
        uid=f.integer("uid", 0),
        cmd=f.text("cmd", ""),
        held_ms=f.integer("held_ms", 0),
        deadline_ns=f.integer("deadline_ns", 0),
        lease_ms=f.integer("lease_ms", 0),
        absent=f.flag("absent", False),
        absent_ms=f.integer("absent_ms", 0),
        absent_left_ms=f.integer("absent_left_ms", 0),
        orphan=f.flag("orphan", False),
        keep_left_ms=f.integer("keep_left_ms", 0),
        remote_field=f.text("remote_field", ""),
        remote_ttl_ms=f.integer("remote_ttl_ms", 0, least=-1),
        grants=f.integer("grants", 0, most=_MAX_COUNT),
        remote_host=f.text("remote_host", ""),
        waiting=f.integer("waiting", 0),
        waiters=tuple([_waiter(w) for w in f.maps("waiters")]) if "waiters" in f else (),
        slot=f.integer("slot", most=_MAX_SLOT) if "slot" in f else None,
        shard=f.text("shard", ""),
        kind=cast(LockKind, f.text("kind", "lock")),
        held=f.integer("held", 0),
        permits=f.integer("permits", 0),
        of=_permits(f, "of"),
        holders=_holders(f),
        shared=f.integer("shared", 0),
    )


def _holders(f: Fields) -> tuple[HolderInfo, ...]:
    return tuple([_holder(row) for row in f.maps("holders")]) if "holders" in f else ()


def _holder(f: Fields) -> HolderInfo:
    return HolderInfo(
        hold=f.integer("hold", 0),
        token=f.integer("token", 0),
        permits=_permits(f, "permits"),
        session=f.integer("session", 0),
        pid=f.integer("pid", 0),
        uid=f.integer("uid", 0),
        cmd=f.text("cmd", ""),
        held_ms=f.integer("held_ms", 0),
        absent=f.flag("absent", False),
        orphan=f.flag("orphan", False),
        shared=f.flag("shared", False),
    )


def _waiter(f: Fields) -> WaiterInfo:
    return WaiterInfo(
        session=f.integer("session", 0),
        pid=f.integer("pid", 0),
        uid=f.integer("uid", 0),
        cmd=f.text("cmd", ""),
        owner=f.integer("owner", 0),
        waited_ms=f.integer("waited_ms", 0),
        permits=_permits(f, "permits"),
        shared=f.flag("shared", False),
    )


def _event(f: Fields) -> Event:
    return Event(
        at_ns=f.integer("at_ns"),
        kind=cast(EventKind, f.text("kind")),
        name=f.text("name", ""),
        hold=f.integer("hold", 0),
        token=f.integer("token", 0),
        session=f.integer("session", 0),
        pid=f.integer("pid", 0),
        uid=f.integer("uid", 0),
        cmd=f.text("cmd", ""),
        waited_ms=f.integer("waited_ms", 0),
        held_ms=f.integer("held_ms", 0),
        reason=cast(LossReason, f.text("reason", "")),
        remote_field=f.text("remote_field", ""),
        count=f.integer("count", 0, most=_MAX_COUNT),
        msg=f.text("msg", ""),
        remote_host=f.text("remote_host", ""),
        permits=_permits(f, "permits"),
        shared=f.flag("shared", False),
    )


def _oldest(f: Fields) -> Oldest:
    return Oldest(
        name=f.text("name"),
        session=f.integer("session", 0),
        pid=f.integer("pid", 0),
        uid=f.integer("uid", 0),
        cmd=f.text("cmd", ""),
        age_ms=f.integer("age_ms", 0),
    )


def _loss(f: Fields) -> tuple[LossReason, int]:
    return cast(LossReason, f.text("reason")), f.integer("count", most=_MAX_COUNT)


def _restart(f: Fields) -> Restart:
    return Restart(
        reason=f.text("reason", ""),
        held=f.integer("held", 0),
        sessions=f.integer("sessions", 0),
        ended=f.integer("ended", 0),
        back=f.integer("back", 0),
        away=f.integer("away", 0),
    )


_MAX_COUNT: Final = (1 << 32) - 1
_MAX_SLOT: Final = 16383

# The answers to an acquire and to an acquire_permits without max_hold: the fields in the order of SPEC.md, each key in
# its shortest format, each value an integer in any unsigned format and in its range, and an id that is not 0. The
# strict reader reads every other frame.
_UINT16: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..)"
_UINT32: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce....)"
_UINT63: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce....|\xcf[\x00-\x7f].......)"
_GRANTED: Final = rb"\xa2id(?!.?\x00+\xa5token)%b\xa5token%b\xa4hold%b\xa5count%b\xabdeadline_ns%b" % (
    _UINT63,
    _UINT63,
    _UINT63,
    _UINT32,
    _UINT63,
)
_GRANT: Final = re.compile(rb"\x85" + _GRANTED, re.DOTALL)
_GRANT_OF_PERMITS: Final = re.compile(rb"\x87%b\xa7permits%b\xa2of%b" % (_GRANTED, _UINT16, _UINT16), re.DOTALL)

# The names of all fields of all replies, at any depth.
_KNOWN: Final = frozenset(
    {
        "key",
        "ttl_ms",
        "owners",
        "queue",
        "queued",
        "holder",
        "holders",
        "permits",
        "shared",
        "of",
        "field",
        "entries",
        "passed",
        "slot",
        "shard",
        "shards",
        "shard_count",
        "address",
        "slots",
        "unsent",
        "id",
        "ev",
        "err",
        "code",
        "msg",
        "v",
        "sidecar",
        "version",
        "session",
        "lease_ms",
        "now_ns",
        "ticket",
        "resumed",
        "token",
        "hold",
        "count",
        "deadline_ns",
        "end_ns",
        "canceled",
        "reason",
        "lock",
        "locks",
        "next",
        "text",
        "redis",
        "degraded",
        "redis_address",
        "redis_run_id",
        "redis_risk",
        "build",
        "key_prefix",
        "events",
        "missed",
        "hidden",
        "at_ns",
        "kind",
        "started_ns",
        "roundtrip_ns",
        "trouble",
        "sessions",
        "held",
        "oldest_waiter",
        "oldest_hold",
        "age_ms",
        "renewals_late",
        "lost",
        "restart",
        "ended",
        "back",
        "away",
        "grants",
        "name",
        "state",
        "owner",
        "pid",
        "uid",
        "cmd",
        "held_ms",
        "absent",
        "absent_ms",
        "absent_left_ms",
        "orphan",
        "keep_left_ms",
        "remote_field",
        "remote_ttl_ms",
        "remote_host",
        "host",
        "hosts",
        "started_ms",
        "more",
        "waiting",
        "waiters",
        "waited_ms",
    }
)
