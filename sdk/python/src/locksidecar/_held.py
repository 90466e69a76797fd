"""Held, the result of an acquire: what the clients for threads and for asyncio have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NoReturn, Protocol, cast

from . import _dropped
from ._clock import wall_time
from ._core import Entry
from ._errors import LossReason
from ._handles import Block


class EntryReader(Protocol):
    """Reads the state of an entry, after it has processed everything that has arrived. It reads the clock."""

    def check(self, entry: Entry) -> None: ...

    def lost(self, entry: Entry) -> str: ...

    def remaining(self, entry: Entry) -> int: ...

    def deadline(self, entry: Entry) -> int: ...


class Held:
    """One acquired lock, from its acquire to its release. The subclass of each client has its own release()."""

    __slots__ = ("__weakref__", "_block", "_entry", "_scoped", "_shared", "name", "token")

    name: Final[str]
    """The name of the lock."""
    token: Final[int]
    """The fencing token: larger for every later holder. Write it into the resource before anything is read."""

    def __init__(self, shared: EntryReader, entry: Entry, scoped: bool, block: Block | None = None) -> None:
        self._shared = shared
        self._entry = entry
        self._scoped = scoped
        self._block = block
        self.name = entry.hold.name
        self.token = entry.hold.token
        _dropped.watch(self, entry)

    def check(self) -> None:
        """Raises LockLost if the lock was lost, NotHeld if it was released."""
        self._shared.check(self._entry)

    @property
    def lost(self) -> LossReason | None:
        """Why the lock was lost (see LockLost); None if it was not."""
        return cast("LossReason | None", self._shared.lost(self._entry) or None)

    @property
    def released(self) -> bool:
        return self._entry.has_been_released

    @property
    def remaining(self) -> float:
        """Seconds until the deadline that is known now; 0 if the lock is not held.

        Without a fixed lease the sidecar extends the deadline again and again.
        """
        return self._shared.remaining(self._entry) / 1e9

    @property
    def deadline(self) -> float:
        """Until when the holder may believe that it holds the lock, in seconds of CLOCK_BOOTTIME."""
        return self._shared.deadline(self._entry) / 1e9

    @property
    def deadline_at(self) -> datetime:
        """The deadline by the wall clock of this host, in UTC, to be shown: `remaining` is what to rely on."""
        return wall_time(self._shared.deadline(self._entry))

    @property
    def shared(self) -> bool:
        """Whether other holds may be shared beside this one. False: it is exclusive, or of no read/write lock."""
        return self._entry.may_be_shared()

    def __repr__(self) -> str:
        state = "released" if self._entry.has_been_released else self._entry.hold.lost_reason or "held"
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a held lock cannot be pickled: another process does not hold it")
