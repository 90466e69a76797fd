"""The client for threads."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, TypeVar

from . import _fork, _held
from . import _protocol as protocol
from ._core import Call, Entry, Options, Session, boottime
from ._errors import ClientClosed, LockLost, LocksidecarError, LockTimeout, NotHeld, Unconfirmed, note
from ._handles import Handles
from ._line import TRIES, Line
from ._link import Link, Patience, socket_path
from ._protocol import LockInfo

__all__ = ["Client", "Held", "Lock", "RLock", "connect"]

T = TypeVar("T")

_OWNERS: Final = itertools.count(1)


class _Thread(threading.local):
    """A number for each thread. Unlike threading.get_ident() it is never used again by another one."""

    def __init__(self) -> None:
        self.owner = next(_OWNERS)


_thread: Final = _Thread()


class Held(_held.Held):
    """One acquired lock, from its acquire to its release. Threads may share it.

    When the sidecar is restarted meanwhile, the lock stays held, with its token. The next call that reads its
    state then connects again first, which takes a moment; if no sidecar listens, it does not wait for one.
    """

    __slots__ = ()

    _line: Line

    def release(self, *, confirm: bool = False, timeout: float | None = None) -> None:
        """Releases the lock. Raises LockLost if it was lost before, NotHeld if it was released before.

        Without confirm this returns before Redis has executed the release: another host that is signalled then
        may still find the lock taken. With confirm=True this returns after Redis has executed the release. The
        lock is released at once in any case.

        timeout: how long to wait for the confirmation, in seconds; None: no limit; 0 or less: not at all. If the
        sidecar is restarted meanwhile, the client requests the confirmation from its successor. Without a
        confirmation this raises Unconfirmed; the lock is released then, too. Without confirm the timeout has no
        meaning.

        If another owner on this host waits for the lock, the lock passes to that owner, and the release is
        confirmed at once.
        """
        self._line.release(self._entry, Patience.to_confirm(timeout) if confirm else None)


class Lock:
    """A lock by name, used like a threading.Lock. Made by Client.lock().

    Who holds it: the thread that acquired it. It is not re-entrant: a thread that waits for what it
    holds itself gets Deadlock. Threads may share the object; any of them may release it.
    """

    __slots__ = ("__weakref__", "_client", "_handles", "_options", "name")

    name: str

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self.name = protocol.check_name(name)
        self._client = client
        self._options = options
        self._handles: Handles[Held] = Handles(any_owner=not options.reentrant)  # guarded by the client's _guard

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Returns whether the lock was acquired in time; raises if it cannot be.

        timeout: seconds to wait; None: as long as the lock was made with; -1: for ever.
        """
        options = self._options
        if not blocking:
            if timeout is not None and timeout != -1:
                raise ValueError("can't specify a timeout for a non-blocking call")
            options = replace(options, timeout=0)
        elif timeout is not None:
            options = replace(options, timeout=None if timeout == -1 else timeout)
        try:
            self._acquire(options, scoped=False)
        except LockTimeout:
            return False
        return True

    def release(self, *, confirm: bool = False, timeout: float | None = None) -> None:
        """Raises LockLost if the lock was lost before, NotHeld if it is not held.

        confirm, timeout: as in Held.release(), whatever the lock was made with; Unconfirmed is raised if there
        is no confirmation.
        """
        with self._client._guard:
            held = self._handles.to_release(_thread.owner)
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held: it was released before, or never acquired here")
        try:
            held.release(confirm=confirm, timeout=timeout)
        finally:
            # What a handler of a signal kept from being released can be released again.
            if held.released and not held._scoped:
                self._forget(held)

    def locked(self) -> bool:
        """Whether a thread of this process holds the lock through this object. For others: Client.info()."""
        with self._client._guard:
            handles = list(self._handles)
        return any(h.remaining > 0 for h in handles)

    @property
    def held(self) -> Held:
        """What the calling thread holds through this object; raises NotHeld."""
        with self._client._guard:
            held = self._handles.top(_thread.owner)
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held by this thread")
        return held

    @property
    def token(self) -> int:
        """The fencing token of what the calling thread holds; raises NotHeld."""
        return self.held.token

    def __enter__(self) -> Held:
        return self._acquire(self._options, scoped=True)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What a handler of a signal raises here is raised once the lock is released.
        ended: list[Held] | None = None
        interrupt: BaseException | None = None
        for _ in TRIES:
            try:
                if ended is None:
                    with self._client._guard:
                        ended = self._handles.to_exit(_thread.owner)
                self._leave(ended, exc)
                break
            except LocksidecarError:
                raise
            except BaseException as e:
                interrupt = e
        if interrupt is not None:
            raise interrupt

    def _leave(self, ended: list[Held], exc: BaseException | None) -> None:
        """If it was interrupted it is called again."""
        if not ended:
            raise NotHeld(f"the lock {self.name!r} is not held by who leaves this with block")
        options = self._options
        error: LockLost | NotHeld | Unconfirmed | None = None
        try:
            for held in ended:
                if not held.released:
                    held.release(confirm=options.confirms(exc), timeout=options.confirm_timeout)
        except (LockLost, NotHeld, Unconfirmed) as e:
            error = e
        for held in ended:
            self._forget(held)
        if error is None:
            return
        if exc is None:
            raise error
        note(exc, error)

    def _forget(self, held: Held) -> None:
        with self._client._guard:
            self._handles.remove(held)

    def _acquire(self, options: Options, scoped: bool) -> Held:
        owner = _thread.owner
        held = self._client._acquire(self.name, owner, options, scoped)
        try:
            with self._client._guard:
                self._handles.push(owner, held)
        except BaseException:  # of a handler of a signal: nobody would know of it
            with contextlib.suppress(LocksidecarError):
                held.release()
            self._forget(held)
            raise
        return held

    def __repr__(self) -> str:
        return f"<locksidecar.{type(self).__name__} {self.name!r}>"

    def __reduce__(self) -> tuple[type[Lock], tuple[Client, str, Options]]:
        return type(self), (self._client, self.name, self._options)


class RLock(Lock):
    """A lock by name, used like a threading.RLock. Made by Client.rlock().

    The thread that holds it may acquire it again; it must release it as often, and nobody else may.
    """

    __slots__ = ()


class Client:
    """One process's session with the sidecar of its host. Threads share it.

    It connects when it is first used, and again after the connection was lost: when the sidecar is killed,
    restarted or upgraded, locks stay held and waits go on. A forked child's copy connects anew and holds
    nothing. Pickled, it is the path of the socket.
    """

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        """path: of the sidecar's socket. Empty: $LOCKSIDECAR_SOCKET, or /run/locksidecar/locksidecar.sock."""
        self.path = socket_path(path)
        self._clock: Callable[[], int] = boottime
        self._closed = False
        # Guards the change of _line, which is made anew when its session has failed; before any line's mutex.
        self._renewing = threading.Lock()
        # Of the handles of all its locks; nothing is waited for under it.
        self._guard = threading.Lock()
        self._line: Line | None = None
        _fork.watch(self)

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        confirm: bool = False,
        confirm_timeout: float | None = None,
    ) -> Lock:
        """A lock like threading.Lock; nothing is acquired yet. Durations are in seconds.

        timeout: how long to wait for it; None: for ever; 0: try once.
        lease: hold it so long at most, without renewal. None: the sidecar renews until the release.
        max_hold: hold it so long at most, even though renewed.
        crash_delay: when this process dies, keep it so much longer.
        confirm: a with block ends after Redis has executed the release, as with held.release(confirm=True), or
        raises Unconfirmed. If the body raises an exception, that is raised instead, with a note about it (as of
        Python 3.11). A block that is left by KeyboardInterrupt or GeneratorExit releases without waiting.
        confirm_timeout: how long to wait for the confirmation; None: no limit.
        """
        options = Options(timeout, lease, max_hold, crash_delay, confirm=confirm, confirm_timeout=confirm_timeout)
        return Lock(self, name, options)

    def rlock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        confirm: bool = False,
        confirm_timeout: float | None = None,
    ) -> RLock:
        """A lock like threading.RLock: its thread may acquire it again. Otherwise as lock().

        While entries are left, the end of an inner block is confirmed at once: the lock stays held.
        """
        options = Options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout)
        return RLock(self, name, options)

    def info(self, name: str) -> LockInfo | None:
        """What the sidecar knows about the lock; None if nobody on this host holds it or waits for it."""
        protocol.check_name(name)
        return self._call(lambda s: s.info(name)).lock

    def list(self) -> tuple[LockInfo, ...]:
        """All locks that the sidecar knows."""
        locks: dict[str, LockInfo] = {}
        after = 0
        while True:
            page = self._call(partial(Session.page, after=after))
            locks.update((row.name, row) for row in page.locks)
            if not page.next:
                return tuple(locks.values())
            after = page.next

    def force_release(self, name: str) -> None:
        """Ends the hold that this host has on the lock, whoever's it is. NotHeld if there is none."""
        protocol.check_name(name)
        self._call(lambda s: s.force_release(name))

    def ping(self) -> str:
        """Asks the sidecar how its Redis is: "ok", or a sentence that says what is wrong."""
        return self._call(Session.ping).redis

    def close(self) -> None:
        """Ends the session. What is still held is lost, and what is waited for fails.

        Waits up to a second for the sidecar to have heard; if it did not, and anything is at stake, a thread
        goes on for as long as it matters.
        """
        self._closed = True
        with self._renewing:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def connect(self) -> None:
        """Connects if it has not yet; so a sidecar that is not there is noticed now."""
        self.ping()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<locksidecar.Client {self.path}>"

    def __reduce__(self) -> tuple[Callable[[str], Client], tuple[str]]:
        return _of_this_process, (self.path,)

    def after_fork_in_child(self) -> None:
        self._renewing = threading.Lock()
        self._guard = threading.Lock()
        self._line = None

    def _acquire(self, name: str, owner: int, options: Options, scoped: bool) -> Held:
        line = self._usable()
        call = line.call(lambda s: s.acquire(name, owner, options, self._clock()), Patience.to_acquire(options.timeout))
        try:
            call.result()
            assert call.hold is not None
            return Held(line, Entry(line.session, call.hold), scoped)
        except BaseException:
            line.abandon(call)
            raise

    def _call(self, ask: Callable[[Session], Call[T]]) -> T:
        return self._usable().call(ask, Patience()).result()

    def _usable(self) -> Line:
        line = self._line
        if line is not None and line.usable():
            return line
        with self._renewing:
            line = self._line
            if line is None or not line.usable():
                if self._closed:
                    raise ClientClosed("the client was closed; make a new one with locksidecar.connect()")
                self._line = line = Line(Link(Session(self.path), self._clock), self._clock)
            return line


_clients: dict[str, Client] = {}


def _of_this_process(path: str) -> Client:
    """The client that whatever was pickled with path shares in this process."""
    return _clients.setdefault(path, Client(path))


def connect(path: str | os.PathLike[str] = "") -> Client:
    """A client that is connected. path as in Client."""
    client = Client(path)
    client.connect()
    return client
