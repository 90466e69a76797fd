"""Distributed locks from the sidecar on this host.

::

    import locksidecar

    client = locksidecar.connect()
    with client.lock("invoice:42", timeout=2) as held:
        charge(fence=held.token)

The asyncio client is in locksidecar.aio.
"""

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
    NotHeld,
    ProtocolError,
    Unavailable,
    Unconfirmed,
    Unsupported,
)
from ._protocol import (
    Event,
    EventPage,
    HostInfo,
    LockInfo,
    LockOwner,
    Oldest,
    OrphanedLock,
    Ownership,
    Restart,
    ShardStatus,
    Status,
    WaiterInfo,
)
from ._sync import Client, Held, Lock, RLock, connect
from ._version import __version__
from .aio import connect as aconnect

__all__ = [
    "BadRequest",
    "Client",
    "ClientClosed",
    "Deadlock",
    "Denied",
    "Event",
    "EventPage",
    "Held",
    "HostInfo",
    "LimitExceeded",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockOwner",
    "LockTimeout",
    "LocksidecarError",
    "NotHeld",
    "Oldest",
    "OrphanedLock",
    "Ownership",
    "ProtocolError",
    "RLock",
    "Restart",
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
