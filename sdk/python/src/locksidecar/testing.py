"""A sidecar in memory, for tests without a daemon and without Redis.

::

    import locksidecar.testing

    def test_second_run_is_refused():
        with locksidecar.testing.Sidecar() as sidecar:
            client = sidecar.connect()
            with sidecar.held_elsewhere("report"), pytest.raises(locksidecar.LockTimeout):
                run_report(client)

It serves the protocol on a Unix socket, in a thread of this process. So the clients are the real ones, for threads and
for asyncio, and a program that is tested as a whole can use it: pass the path, or set LOCKSIDECAR_SOCKET to it. The
tests of this package run against it, and those of its rules against it and the daemon.

There are no limits of sessions, holds and waiters, and any user may force a release. It runs on Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from . import _clock, _sync, aio
from ._clock import boottime
from ._fake import Server
from ._transport import require_linux, socket_path

__all__ = ["Sidecar"]

# A test that waits longer than that for an event has failed.
_PATIENCE: Final = 30.0

_REASONS: Final = ("expired", "deleted", "stolen", "forced", "max_hold", "forgotten")


class _Server(Server):
    """A Server whose clock can be moved forward."""

    def __init__(self, path: str) -> None:
        self.ahead = 0  # nanoseconds
        super().__init__(path)
        self.now = lambda: time.monotonic_ns() + self.ahead
        self.clock = lambda: boottime() + self.ahead

    def advance(self, nanoseconds: int) -> None:
        with self._lock_all:
            until = self.now() + nanoseconds
            # A client reads nothing meanwhile: it gets the last renewal only.
            self.sends_leases = False
            while (at := self.next_timer()) is not None and at <= until:
                self.ahead += max(at - self.now(), 0)
                self.fire()
            self.ahead += max(until - self.now(), 0)
            self.sends_leases = True
            if not self.redis_down:
                self.renew()
            self._changed.notify_all()
            self._wake()


class Sidecar:
    """A sidecar in memory. It serves until close(), or until the end of the `with` block.

    Its clock is the host's, plus what advance() has added.
    """

    def __init__(self, path: str | os.PathLike[str] = "", *, lease: float = 30.0) -> None:
        """path: where the socket is made; empty: in a new directory. lease: the watchdog lease, in seconds."""
        require_linux()
        self._directory = ""
        if not path:
            self._directory = tempfile.mkdtemp(prefix="locksidecar-", dir=_short_directory())
            path = os.path.join(self._directory, "locksidecar.sock")
        self.path: str = socket_path(path)
        self._server = _Server(self.path)
        self._server.lease_ns = round(lease * 1e9)
        _clock.clocks[self.path] = self._server.clock

    # --- Clients ---

    def connect(self, *, name_prefix: str = "") -> _sync.Client:
        """Returns a connected client for threads."""
        return _sync.connect(self.path, name_prefix=name_prefix)

    def aconnect(self, *, name_prefix: str = "") -> aio._Connecting:
        """Returns a connected client for asyncio: `await aconnect()`, or `async with aconnect() as client`."""
        return aio.connect(self.path, name_prefix=name_prefix)

    # --- Time ---

    def advance(self, seconds: float) -> None:
        """Moves the clock forward. Everything that is due in that time happens before this returns, in its order.

        Leases are renewed, unless Redis cannot be reached; fixed leases, max_hold, crash_delay and the timeouts of
        waits end. Clients of this process follow the clock; those of other processes do not, and cannot connect after
        that.
        """
        if seconds < 0:
            raise ValueError("the clock cannot be moved back")
        self._server.advance(round(seconds * 1e9))

    # --- Losses ---

    def lose(self, name: str, reason: str = "deleted", *, token: int | None = None) -> None:
        """Ends the hold of the client that holds the lock, with one of the reasons of LockLost.

        The next waiter gets the lock. Of a read/write lock or a semaphore it ends all holds, or that with the token.
        """
        if reason not in _REASONS:
            raise ValueError(f"a sidecar does not send the reason {reason!r}; it sends {', '.join(_REASONS)}")
        self._server.lose(name, reason, token)

    @contextlib.contextmanager
    def held_elsewhere(self, name: str, *, permits: int = 0, shared: bool = False) -> Iterator[int]:
        """Within the block, another host holds the lock, which must be free before. Gives its fencing token.

        permits: it holds so many permits of a semaphore, which others may hold, too. shared: it shares a read/write
        lock, which others may share, too.
        """
        token = self._server.hold_elsewhere(name, permits, shared)
        try:
            yield token
        finally:
            self._server.release_elsewhere(name, token)

    @contextlib.contextmanager
    def redis_unreachable(self) -> Iterator[None]:
        """Within the block the sidecar cannot reach Redis.

        A free lock is not granted: an acquire ends with Unavailable. Held locks are valid until their leases end,
        because they are not renewed, and releases are not confirmed.
        """
        self._server.redis_down = True
        try:
            yield
        finally:
            self._server.recover_redis()

    # --- Restarts ---

    def restart(self) -> None:
        """The sidecar is killed and started again, with its state: locks stay held, and waits continue."""
        self._server.restart()

    def restart_without_state(self) -> None:
        """The sidecar is killed and started again without its state: it does not know the locks that are held."""
        self._server.restart_without_state()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within the block no sidecar listens. At its end the sidecar is there again, with its state."""
        self._server.stop_listening()
        self._server.restart()
        try:
            yield
        finally:
            self._server.listen()

    # --- State ---

    def is_held(self, name: str) -> bool:
        """Whether any program holds the lock, on this host or elsewhere."""
        return self._server.is_held(name)

    def permits_held(self, name: str) -> int:
        """How many permits of a semaphore are held, on this host and elsewhere."""
        return self._server.permits_held(name)

    def waiting(self, name: str) -> int:
        """How many owners wait for the lock."""
        return self._server.waiting(name)

    def wait_for_waiters(self, name: str, count: int = 1) -> None:
        """Returns when at least `count` owners wait for the lock. A test needs no sleep for that."""
        if not self._server.wait_for(lambda: self._server.waiting(name) >= count, _PATIENCE):
            raise TimeoutError(f"{self._server.waiting(name)} of {count} owners wait for {name!r} after {_PATIENCE} s")

    # --- The end ---

    def close(self) -> None:
        """Ends the sidecar and removes its socket. Close the clients before. In a forked child this does nothing."""
        if not self._server.is_of_this_process():
            return
        self._server.stop()
        _clock.clocks.pop(self.path, None)
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<locksidecar.testing.Sidecar {self.path}>"


def _short_directory() -> str | None:
    """A directory for the socket, whose path may have at most 107 bytes; None: the default of tempfile."""
    return None if len(os.fsencode(tempfile.gettempdir())) <= 60 else "/tmp"
