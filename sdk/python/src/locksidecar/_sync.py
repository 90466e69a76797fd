"""The client for threads.

All threads of a process share one connection and no thread belongs to it. Of those that wait for an
answer one, the leader, waits on the socket and hands the others theirs; when it has its own, it passes
the role on. What nobody waits for (a lock was lost) is read by the next call, or by check().
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

from . import _fork
from . import _protocol as protocol
from ._core import Call, Entry, Options, Session, boottime
from ._errors import ClientClosed, LockLost, LocksidecarError, LockTimeout, NotHeld, Unavailable, note
from ._handles import Handles
from ._link import ANSWER_GRACE, CONNECT_WAIT, Link, Socket, dial, explain, greeted, pauses, socket_path, starting
from ._protocol import LockInfo

T = TypeVar("T")

_OWNERS: Final = itertools.count(1)
_TRIES: Final = (1, 2, 3, 4, 5)


class _Thread(threading.local):
    """A number for each thread. Unlike threading.get_ident() it is never used again by another one."""

    def __init__(self) -> None:
        self.owner = next(_OWNERS)


_thread: Final = _Thread()


class _Connection:
    """One connection, shared by threads.

    mutex guards everything else, but is never held while waiting. A thread that holds it may read from
    the socket; only the leader waits for it, and is woken by the bell when its answer was read by
    another thread, when there is something left to write, or when the connection failed.
    """

    def __init__(self, sock: Socket, path: str, clock: Callable[[], int]) -> None:
        self.mutex = threading.Lock()
        self.link = Link(sock, path, clock)
        self.session = self.link.session
        self._clock = clock
        self._leader: Call[Any] | None = None
        self._polling = False  # the leader is about to wait, or waits
        # Who waits for an answer, by the id of the call. A permit is released to wake its thread.
        self._waiting: dict[int, threading.Lock] = {}
        self._bell = _Bell()
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        _fork.watch(self)

    # --- Calls ---

    def call(self, ask: Callable[[Session], Call[T]], patience: float | None) -> Call[T]:
        """Asks and waits until it is done, whatever comes of it.

        After patience seconds the sidecar is taken for stopped. However this ends without the call
        being done, the call has been abandoned.
        """
        until = None if patience is None else time.monotonic() + patience
        call: Call[T] | None = None
        try:
            with self.mutex:
                call = ask(self.session)
                self._flush()
            self._await(call, until)
        except BaseException:
            if call is not None:
                self.abandon(call)
            raise
        return call

    def abandon(self, call: Call[Any]) -> None:
        with self.mutex:
            self.session.abandon(call)
            self._flush()

    def _await(self, call: Call[Any], until: float | None) -> None:
        permit = threading.Lock()
        permit.acquire()
        try:
            while True:
                with self.mutex:
                    if call.done:
                        return
                    self._waiting[call.id] = permit
                    if self._leader is None:
                        self._leader = call
                    leading = self._leader is call
                    if leading:
                        self._polling = True
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise Unavailable(
                        f"the sidecar at {self.session.path} does not answer; is it stopped or overloaded? "
                        f"This {call.op} is given up",
                        may_have_happened=call.op == "force_release",
                    )
                if leading:
                    self._lead(left)
                else:
                    permit.acquire(timeout=-1 if left is None else left)
        finally:
            # A handler of a signal may raise here too. Others would wait for ever for a leader that has
            # left without a word, so it is done again until it is done. Python runs handlers at calls, so
            # there is none before the inner try.
            interrupt: BaseException | None = None
            for _ in _TRIES:
                try:
                    with self.mutex:
                        self._waiting.pop(call.id, None)
                        if self._leader is call:
                            self._leader = None
                            self._polling = False
                        self._tell()
                        if self._leader is None and self._waiting:
                            self._permit(next(iter(self._waiting.values())))  # to lead
                    break
                except BaseException as e:
                    interrupt = e
            if interrupt is not None:
                raise interrupt

    def _lead(self, patience: float | None) -> None:
        interest = select.POLLIN | (select.POLLOUT if self.session.unsent else 0)
        # Whoever leaves something unsent after this look rings the bell.
        self._poll.register(self.link, interest)
        timeout = None if patience is None else min(patience, 3600.0) * 1000
        self._poll.poll(timeout)
        with self.mutex:
            self._polling = False
            self._bell.silence()
            self._pump()

    @staticmethod
    def _permit(permit: threading.Lock) -> None:
        with contextlib.suppress(RuntimeError):  # it has one already
            permit.release()

    # --- With the mutex held ---

    def _pump(self) -> None:
        try:
            self.link.pump()
        finally:
            self._tell()
        if self.session.unsent:  # the release of a grant that came too late
            self._flush()

    def _flush(self) -> None:
        try:
            if not self.link.flush():
                self._wake_leader()
        finally:
            self._tell()

    def _tell(self) -> None:
        """Wakes those whose calls are done. If it is interrupted, the next one goes on with it."""
        session = self.session
        session.lost.clear()  # whoever cares asks
        if session.failure is not None:
            session.fail_pending()
            self._settle()
        while session.done:
            call = session.done[-1]
            if call is self._leader:
                self._wake_leader()
            elif (permit := self._waiting.get(call.id)) is not None:
                self._permit(permit)
            session.done.pop()

    def _wake_leader(self) -> None:
        if self._polling:
            self._bell.ring()
            self._polling = False  # not before: an interrupt in between would leave the leader asleep

    def _settle(self) -> None:
        # Not under the leader's poll: the number of a closed file may be another file's a moment later.
        if self._leader is None and self.link.settle():
            self._bell.close()

    # --- Holds ---

    def usable(self) -> bool:
        with self.mutex:
            self._pump()
            return self.session.failure is None

    def check(self, entry: Entry) -> None:
        with self.mutex:
            self._pump()
            entry.check(self._clock())

    def lost(self, entry: Entry) -> str:
        with self.mutex:
            self._pump()
            return entry.lost(self._clock())

    def remaining(self, entry: Entry) -> int:
        with self.mutex:
            self._pump()
            return entry.remaining(self._clock())

    def deadline(self, entry: Entry) -> int:
        with self.mutex:
            self._pump()
            return self.session.deadline(entry.hold)

    def release(self, entry: Entry) -> None:
        # A lock that a handler of a signal kept from being released would be renewed for ever.
        interrupt: BaseException | None = None
        stuck = False
        for _ in _TRIES:
            try:
                with self.mutex:
                    self._pump()
                    try:
                        if interrupt is None or not entry.released:
                            entry.release(self._clock())
                    finally:
                        self._flush()
                    stuck = bool(self.session.unsent)
                break
            except LocksidecarError:
                raise
            except BaseException as e:
                interrupt = e
        if interrupt is not None:
            raise interrupt
        if stuck:
            self._see_through()

    def _see_through(self) -> None:
        """The sidecar does not keep up, and nobody may come to send the rest."""
        with contextlib.suppress(LocksidecarError):
            self.call(Session.ping, ANSWER_GRACE)
        with self.mutex:
            # Later releases will send it. If there are none to come, ending the session releases all the same.
            if self.session.unsent and not self.session.live:
                self.session.fail("The sidecar did not take what it was sent.")
                self._tell()

    def close(self) -> None:
        with self.mutex:
            self.session.lose_all("closed")
            self.session.fail("The client was closed.", ClientClosed)
            self._tell()

    # --- The end ---

    def after_fork_in_child(self) -> None:
        self.mutex = threading.Lock()
        self._leader = None
        self._polling = False
        self._waiting.clear()
        self.link.disown()
        self._bell.close()


class _Bell:
    """Wakes the thread that polls."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None:
        self._rung = True
        os.eventfd_write(self._fd, 1)

    def silence(self) -> None:
        if self._rung:
            self._rung = False
            with contextlib.suppress(BlockingIOError):  # who rang was interrupted
                os.eventfd_read(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class Held:
    """One acquired lock, from its acquire to its release. Threads may share it."""

    __slots__ = ("_connection", "_entry", "_scoped", "name", "token")

    name: str
    """Of the lock."""
    token: int
    """The fencing token: larger for every later holder. Hand it to what the lock guards."""

    def __init__(self, connection: _Connection, entry: Entry, scoped: bool) -> None:
        self._connection = connection
        self._entry = entry
        self._scoped = scoped
        self.name = entry.hold.name
        self.token = entry.hold.token

    def check(self) -> None:
        """Raises LockLost if the lock was lost, NotHeld if it was released."""
        self._connection.check(self._entry)

    def release(self) -> None:
        """Raises LockLost if the lock was lost before, NotHeld if it was released before. Waits for nothing."""
        self._connection.release(self._entry)

    @property
    def lost(self) -> str | None:
        """Why the lock was lost (see LockLost), None if it was not."""
        return self._connection.lost(self._entry) or None

    @property
    def released(self) -> bool:
        return self._entry.released

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, as far as known now; 0 if the lock is not held any more.

        Without a fixed lease the sidecar keeps moving the deadline on.
        """
        return self._connection.remaining(self._entry) / 1e9

    @property
    def deadline(self) -> float:
        """Until when the lock may be believed in, in seconds of CLOCK_BOOTTIME."""
        return self._connection.deadline(self._entry) / 1e9

    def __repr__(self) -> str:
        state = "released" if self._entry.released else self._entry.hold.lost or "held"
        return f"<locksidecar.Held {self.name!r} token={self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a held lock cannot be pickled: another process does not hold it")


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

    def release(self) -> None:
        """Raises LockLost if the lock was lost before, NotHeld if it is not held. Waits for nothing."""
        with self._client._guard:
            held = self._handles.to_release(_thread.owner)
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held: it was released before, or never acquired here")
        try:
            held.release()
        finally:
            if not held._scoped:
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
        for _ in _TRIES:
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
        error: LockLost | NotHeld | None = None
        try:
            for held in ended:
                if not held.released:
                    held.release()
        except (LockLost, NotHeld) as e:
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
    """One process's connection to the sidecar of its host. Threads share it.

    It connects when it is first used, and again after the connection was lost. A forked child's copy
    connects anew and holds nothing. Pickled, it is the path of the socket.
    """

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        """path: of the sidecar's socket. Empty: $LOCKSIDECAR_SOCKET, or /run/locksidecar/locksidecar.sock."""
        self.path = socket_path(path)
        self._clock: Callable[[], int] = boottime
        self._closed = False
        # Held while connecting, which is the only change of _connection; before any connection's mutex.
        self._connecting = threading.Lock()
        # Of the handles of all its locks; nothing is waited for under it.
        self._guard = threading.Lock()
        self._connection: _Connection | None = None
        _fork.watch(self)

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
    ) -> Lock:
        """A lock like threading.Lock; nothing is acquired yet. Durations are in seconds.

        timeout: how long to wait for it; None: for ever; 0: try once.
        lease: hold it so long at most, without renewal. None: the sidecar renews until the release.
        max_hold: hold it so long at most, even though renewed.
        crash_delay: when this process dies, keep it so much longer.
        """
        return Lock(self, name, Options(timeout, lease, max_hold, crash_delay))

    def rlock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
    ) -> RLock:
        """A lock like threading.RLock: its thread may acquire it again. Otherwise as lock()."""
        return RLock(self, name, Options(timeout, lease, max_hold, crash_delay, reentrant=True))

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
        """Ends the connection. What is still held is lost, and what is waited for fails."""
        self._closed = True
        with self._connecting:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def connect(self) -> None:
        """Connects if it has not yet; so a sidecar that is not there is noticed now."""
        self._connected(None)

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
        self._connecting = threading.Lock()
        self._guard = threading.Lock()
        self._connection = None

    def _acquire(self, name: str, owner: int, options: Options, scoped: bool) -> Held:
        began = time.monotonic()
        connection = self._connected(options.timeout)
        wait = None if options.timeout is None else options.timeout - (time.monotonic() - began)
        patience = None if wait is None else max(wait, 0) + ANSWER_GRACE
        call = connection.call(lambda s: s.acquire(name, owner, options, wait), patience)
        try:
            call.result()
            assert call.hold is not None
            return Held(connection, Entry(connection.session, call.hold), scoped)
        except BaseException:
            connection.abandon(call)
            raise

    def _call(self, ask: Callable[[Session], Call[T]]) -> T:
        return self._connected(None).call(ask, ANSWER_GRACE).result()

    def _connected(self, wait: float | None) -> _Connection:
        connection = self._connection
        if connection is not None and connection.usable():
            return connection
        # From here on, so that those who wait for each other's attempts do not add up theirs.
        until = time.monotonic() + (CONNECT_WAIT if wait is None else min(wait, CONNECT_WAIT))
        with self._connecting:
            connection = self._connection
            if connection is None or not connection.usable():
                if self._closed:
                    raise ClientClosed("the client was closed; make a new one with locksidecar.connect()")
                self._connection = connection = self._connect(until)
            return connection

    def _connect(self, until: float) -> _Connection:
        for pause in pauses():
            try:
                return self._greet(_Connection(dial(self.path), self.path, self._clock))
            except Unavailable:  # it went away before it answered
                if time.monotonic() + pause > until:
                    raise
            except LocksidecarError:
                raise
            except OSError as e:
                if time.monotonic() + pause > until or not starting(e):
                    raise explain(self.path, e) from e
            time.sleep(pause)
        raise AssertionError("pauses() never ends")

    def _greet(self, connection: _Connection) -> _Connection:
        try:
            asked = self._clock()
            answer = connection.call(Session.hello, ANSWER_GRACE).result()
            greeted(self.path, answer, asked, self._clock())
        except BaseException:
            connection.close()
            raise
        return connection


_clients: dict[str, Client] = {}


def _of_this_process(path: str) -> Client:
    """The client that whatever was pickled with path shares in this process."""
    return _clients.setdefault(path, Client(path))


def connect(path: str | os.PathLike[str] = "") -> Client:
    """A client that is connected. path as in Client."""
    client = Client(path)
    client.connect()
    return client
