"""Distributed locks from the sidecar on this host.

::

    import locksidecar

    client = locksidecar.connect()
    with client.lock("invoice:42", timeout=2) as held:
        charge(fence=held.token)
    with client.rwlock("catalog").read() as held:
        read_catalog()
    with client.semaphore("partner-api", permits=10).acquire(2, timeout=5):
        call_partner()

The asyncio client is in locksidecar.aio.

A database may execute a statement after the process that sent it has died and the lock is free. So it is not enough to
refuse tokens smaller than the largest so far. To read, change and write a value, write the token first::

    UPDATE items SET fence = %(token)s WHERE name = %(name)s AND fence <= %(token)s RETURNING stock
    UPDATE items SET stock = %(new)s WHERE name = %(name)s AND fence = %(token)s

If a statement changes no row, stop: a later holder has written its token. Each later write has the condition of the
second statement, or all of them are one transaction, which ends before the release.
"""

from typing import Final, Literal  # noqa: F401 - typing.get_type_hints() looks for them here: see the end

from . import aio
from ._errors import (
    BadRequest,
    ClientClosed,
    Deadlock,
    Denied,
    LimitExceeded,
    LockLost,
    LocksidecarError,
    LockTimeout,
    LossReason,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unconfirmed,
    Unsupported,
)
from ._protocol import (
    Event,
    EventKind,
    EventPage,
    HolderInfo,
    HostInfo,
    KeyKind,
    LockInfo,
    LockKind,
    LockOwner,
    LockState,
    Oldest,
    OrphanedLock,
    Ownership,
    Restart,
    ShardStatus,
    Status,
    WaiterInfo,
)
from ._sync import Client, Held, Lock, Permits, RLock, RWLock, Semaphore, connect
from ._version import __version__
from .aio import connect as aconnect

__all__ = [
    "BadRequest",
    "Client",
    "ClientClosed",
    "Deadlock",
    "Denied",
    "Event",
    "EventKind",
    "EventPage",
    "Held",
    "HolderInfo",
    "HostInfo",
    "KeyKind",
    "LimitExceeded",
    "Lock",
    "LockInfo",
    "LockKind",
    "LockLost",
    "LockOwner",
    "LockState",
    "LockTimeout",
    "LocksidecarError",
    "LossReason",
    "NotHeld",
    "Oldest",
    "OrphanedLock",
    "Ownership",
    "Permits",
    "ProtocolError",
    "RLock",
    "RWLock",
    "Restart",
    "Semaphore",
    "ShardStatus",
    "Status",
    "Unavailable",
    "Unconfirmed",
    "Unsupported",
    "WaiterInfo",
    "__version__",
    "aconnect",
    "aio",
    "connect",
]

# Tracebacks, pickles and documentation show where a program finds a name, and not the module that defines it.
for _name in __all__:
    _public = globals()[_name]
    if getattr(_public, "__module__", "").startswith(f"{__name__}._"):
        _public.__module__ = __name__
del _name, _public
