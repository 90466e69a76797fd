"""The client for asyncio.

Tasks of one event loop share a connection. A client belongs to the loop that it connected in; after a
fork, or in a new loop after the old one was closed, it connects anew.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from . import _fork
from . import _protocol as protocol
from ._core import Call, Entry, Hold, Options, Session, boottime
from ._errors import ClientClosed, LockLost, LocksidecarError, LockTimeout, NotHeld, Unavailable, note
from ._handles import Handles
from ._link import ANSWER_GRACE, CONNECT_WAIT, Link, Socket, dial, explain, greeted, pauses, socket_path, starting
from ._protocol import LockInfo

__all__ = ["Client", "Held", "Lock", "RLock", "connect"]

T = TypeVar("T")

_OWNERS: Final = itertools.count(1)
_owners: Final[WeakKeyDictionary[asyncio.Task[Any], int]] = WeakKeyDictionary()


def _owner() -> int:
    """A number for the current task. A context variable would be inherited by the tasks that it starts.

    0 in what is no task, as a callback of the loop: it may release a lock.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        task = None
    if task is None:
        return 0
    owner = _owners.get(task)
    if owner is None:
        owner = _owners[task] = next(_OWNERS)
    return owner


class _Connection:
    """One connection. The loop calls when there is something to read, so events are read as they come."""

    def __init__(self, sock: Socket, path: str, clock: Callable[[], int]) -> None:
        self.loop = asyncio.get_running_loop()
        self.link = Link(sock, path, clock)
        self.session = self.link.session
        self.clock = clock
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by the id of the call
        self._bodies: dict[Hold, list[_Body]] = {}  # to be cancelled if the hold is lost
        self._writing = False  # the loop tells when there is room to write
        self._attached = True
        self._fd = self.link.fileno()
        self.loop.add_reader(self._fd, self._pump)
        _fork.watch(self)

    # --- Calls ---

    async def call(self, ask: Callable[[Session], Call[T]], patience: float | None) -> Call[T]:
        """Asks and waits until it is done, whatever comes of it.

        After patience seconds the sidecar is taken for stopped. However this ends without the call
        being done, the call has been abandoned.
        """
        call = ask(self.session)
        future = self._waiting[call.id] = self.loop.create_future()
        timer = None if patience is None else self.loop.call_later(patience, self._give_up, future, call)
        self._flush()
        try:
            await future
        except BaseException:
            self.abandon(call)
            raise
        finally:
            self._waiting.pop(call.id, None)
            if timer is not None:
                timer.cancel()
        return call

    def _give_up(self, future: asyncio.Future[None], call: Call[Any]) -> None:
        if not future.done():
            future.set_exception(
                Unavailable(
                    f"the sidecar at {self.session.path} does not answer; is it stopped or overloaded? "
                    f"This {call.op} is given up",
                    may_have_happened=call.op == "force_release",
                )
            )

    def abandon(self, call: Call[Any]) -> None:
        self.session.abandon(call)
        self._flush()

    # --- The socket ---

    def _pump(self) -> None:
        try:
            self.link.pump()
        finally:
            self._tell()
        if self.session.unsent:  # the release of a grant that came too late
            self._flush()

    def _flush(self) -> None:
        try:
            done = self.link.flush()
            if not done and not self._writing:
                self._writing = True
                self.loop.add_writer(self._fd, self._flush)
            elif done and self._writing:
                self._writing = False
                self.loop.remove_writer(self._fd)
        finally:
            self._tell()

    def _tell(self) -> None:
        """Wakes those whose calls are done, and interrupts those whose locks are lost."""
        session = self.session
        if session.done:
            done, session.done = session.done, []
            for call in done:
                future = self._waiting.pop(call.id, None)
                if future is not None and not future.done():
                    future.set_result(None)
        if session.lost:
            lost, session.lost = session.lost, []
            for hold in lost:
                for body in self._bodies.get(hold, ()):
                    body.interrupt()
        if session.failure is not None:
            self._settle()

    def _settle(self) -> None:
        if self._attached and not self.loop.is_closed():
            self._attached = False
            self.loop.remove_reader(self._fd)
            if self._writing:
                self._writing = False
                self.loop.remove_writer(self._fd)
        self.link.settle()

    # --- Holds ---

    def usable(self) -> bool:
        self._pump()
        return self.session.failure is None

    def check(self, entry: Entry) -> None:
        self._pump()
        try:
            entry.check(self.clock())
        finally:
            self._tell()

    def lost(self, entry: Entry) -> str:
        self._pump()
        reason = entry.lost(self.clock())
        self._tell()
        return reason

    def remaining(self, entry: Entry) -> int:
        self._pump()
        left = entry.remaining(self.clock())
        self._tell()
        return left

    def deadline(self, entry: Entry) -> int:
        self._pump()
        return self.session.deadline(entry.hold)

    def release(self, entry: Entry) -> None:
        self._pump()
        try:
            entry.release(self.clock())
        finally:
            self._flush()

    def watch(self, body: _Body, hold: Hold) -> None:
        self._bodies.setdefault(hold, []).append(body)

    def unwatch(self, body: _Body, hold: Hold) -> None:
        bodies = self._bodies.get(hold, [])
        if body in bodies:
            bodies.remove(body)
        if not bodies:
            self._bodies.pop(hold, None)

    # --- The end ---

    def close(self) -> None:
        if self.loop.is_closed():  # nobody waits in it, and it can be told nothing
            self._waiting.clear()
            self._bodies.clear()
        self.session.lose_all("closed")
        self.session.fail("The client was closed.", ClientClosed)
        self._tell()

    def after_fork_in_child(self) -> None:
        # The loop is the parent's: its selector is shared, so nothing may be removed from it here.
        self._attached = self._writing = False
        self._waiting.clear()
        self._bodies.clear()
        self.link.disown()


class _Body:
    """The body of an `async with`, which is cancelled when its lock is lost."""

    __slots__ = ("_before", "_cancelled", "_connection", "_entry", "_interrupt", "_task", "_timer")

    def __init__(self, connection: _Connection, entry: Entry) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._connection = connection
        self._entry = entry
        self._cancelled = False
        self._interrupt: asyncio.Handle | None = None
        # Cancellations that were asked for before the body began, and are not for the body to answer.
        self._before = 0
        if sys.version_info >= (3, 11):
            self._before = task.cancelling()
        connection.watch(self, entry.hold)
        self._timer = self._arm()
        if entry.hold.lost:  # between the grant and now
            self.interrupt()

    def _arm(self) -> asyncio.TimerHandle:
        connection = self._connection
        left = connection.session.deadline(self._entry.hold) - connection.clock()
        return connection.loop.call_later(max(left, 0) / 1e9, self._due)

    def _due(self) -> None:
        # The deadline may have moved on. The loop's clock stands still while the host is suspended and a
        # timer may fire a little early, so only the clock of the deadline decides.
        if not self._entry.released and not self._connection.lost(self._entry):
            self._timer = self._arm()

    def interrupt(self) -> None:
        # Not at once: the loss may have been found by the task itself, in check(), and a task that cancels
        # itself would be hit at its next await, which may be behind the body.
        if self._interrupt is None and not self._entry.released:
            self._interrupt = self._connection.loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        self._task.cancel(_LOST)

    def close(self, exc: BaseException | None) -> bool:
        """Disarms it; tells whether exc is nothing but the cancellation made here."""
        self._timer.cancel()
        if self._interrupt is not None:
            self._interrupt.cancel()
        self._connection.unwatch(self, self._entry.hold)
        if not self._cancelled:
            return False
        if sys.version_info >= (3, 11):
            return self._task.uncancel() <= self._before and isinstance(exc, asyncio.CancelledError)
        # Python 3.10 does not count cancellations; a later one replaces the message of the first.
        return isinstance(exc, asyncio.CancelledError) and exc.args == (_LOST,)


_LOST: Final = "locksidecar: the lock was lost"


class Held:
    """One acquired lock, from its acquire to its release. Nothing here waits."""

    __slots__ = ("_body", "_connection", "_entry", "_scoped", "name", "token")

    name: str
    """Of the lock."""
    token: int
    """The fencing token: larger for every later holder. Hand it to what the lock guards."""

    def __init__(self, connection: _Connection, entry: Entry, scoped: bool) -> None:
        self._connection = connection
        self._entry = entry
        self._scoped = scoped
        self._body = _Body(connection, entry) if scoped else None
        self.name = entry.hold.name
        self.token = entry.hold.token

    def check(self) -> None:
        """Raises LockLost if the lock was lost, NotHeld if it was released."""
        self._connection.check(self._entry)

    def release(self) -> None:
        """Raises LockLost if the lock was lost before, NotHeld if it was released before."""
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

    def _leave(self, exc: BaseException | None) -> None:
        """The end of the `async with`."""
        ours = self._body is not None and self._body.close(exc)
        if self._entry.released:
            # Released within the body: what happened to the lock after that concerns nobody.
            if ours:
                raise self._entry.loss(self._entry.hold.lost) from exc
            return
        try:
            self.release()
        except (LockLost, NotHeld) as e:
            if ours or exc is None:
                raise e from exc
            note(exc, e)

    def __repr__(self) -> str:
        state = "released" if self._entry.released else self._entry.hold.lost or "held"
        return f"<locksidecar.aio.Held {self.name!r} token={self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a held lock cannot be pickled: another process does not hold it")


class Lock:
    """A lock by name, used like an asyncio.Lock. Made by Client.lock().

    Who holds it: the task that acquired it. It is not re-entrant: a task that waits for what it holds
    itself gets Deadlock. Tasks may share the object; any of them may release it.

    When the lock is lost within `async with`, the body is cancelled and LockLost is raised at its end.
    """

    __slots__ = ("__weakref__", "_client", "_handles", "_options", "name")

    name: str

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self.name = protocol.check_name(name)
        self._client = client
        self._options = options
        self._handles: Handles[Held] = Handles(any_owner=not options.reentrant)

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
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
            await self._acquire(options, scoped=False)
        except LockTimeout:
            return False
        return True

    def release(self) -> None:
        """Raises LockLost if the lock was lost before, NotHeld if it is not held."""
        held = self._handles.to_release(_owner())
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held: it was released before, or never acquired here")
        if not held._scoped:
            self._handles.remove(held)
        held.release()

    def locked(self) -> bool:
        """Whether a task of this process holds the lock through this object. For others: Client.info()."""
        return any(h.remaining > 0 for h in self._handles)

    @property
    def held(self) -> Held:
        """What the current task holds through this object; raises NotHeld."""
        held = self._handles.top(_owner())
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held by this task")
        return held

    @property
    def token(self) -> int:
        """The fencing token of what the current task holds; raises NotHeld."""
        return self.held.token

    async def __aenter__(self) -> Held:
        return await self._acquire(self._options, scoped=True)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = self._handles.to_exit(_owner())
        if not ended:
            raise NotHeld(f"the lock {self.name!r} is not held by who leaves this async with block")
        for held in ended:
            self._handles.remove(held)
        try:
            ended[0]._leave(exc)
        finally:
            for held in ended[1:]:
                held._leave(exc)

    async def _acquire(self, options: Options, scoped: bool) -> Held:
        owner = _owner()
        held = await self._client._acquire(self.name, owner, options, scoped)
        self._handles.push(owner, held)
        return held

    def __repr__(self) -> str:
        return f"<locksidecar.aio.{type(self).__name__} {self.name!r}>"

    def __reduce__(self) -> tuple[type[Lock], tuple[Client, str, Options]]:
        return type(self), (self._client, self.name, self._options)


class RLock(Lock):
    """A lock by name, re-entrant. Made by Client.rlock().

    The task that holds it may acquire it again; it must release it as often, and nobody else may.
    """

    __slots__ = ()


class Client:
    """One process's connection to the sidecar of its host, for the tasks of one event loop.

    It connects when it is first used, and again after the connection was lost. A forked child's copy
    connects anew and holds nothing. Pickled, it is the path of the socket.
    """

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        """path: of the sidecar's socket. Empty: $LOCKSIDECAR_SOCKET, or /run/locksidecar/locksidecar.sock."""
        self.path = socket_path(path)
        self._clock: Callable[[], int] = boottime
        self._closed = False
        self._connection: _Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
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
        """A lock like asyncio.Lock; nothing is acquired yet. Durations are in seconds.

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
        """A re-entrant lock: its task may acquire it again. Otherwise as lock()."""
        return RLock(self, name, Options(timeout, lease, max_hold, crash_delay, reentrant=True))

    async def info(self, name: str) -> LockInfo | None:
        """What the sidecar knows about the lock; None if nobody on this host holds it or waits for it."""
        protocol.check_name(name)
        return (await self._call(lambda s: s.info(name))).lock

    async def list(self) -> tuple[LockInfo, ...]:
        """All locks that the sidecar knows."""
        locks: dict[str, LockInfo] = {}
        after = 0
        while True:
            page = await self._call(partial(Session.page, after=after))
            locks.update((row.name, row) for row in page.locks)
            if not page.next:
                return tuple(locks.values())
            after = page.next

    async def force_release(self, name: str) -> None:
        """Ends the hold that this host has on the lock, whoever's it is. NotHeld if there is none."""
        protocol.check_name(name)
        await self._call(lambda s: s.force_release(name))

    async def ping(self) -> str:
        """Asks the sidecar how its Redis is: "ok", or a sentence that says what is wrong."""
        return (await self._call(Session.ping)).redis

    async def aclose(self) -> None:
        """Ends the connection. What is still held is lost, and what is waited for fails."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def connect(self) -> None:
        """Connects if it has not yet; so a sidecar that is not there is noticed now."""
        await self._connected(None)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<locksidecar.aio.Client {self.path}>"

    def __reduce__(self) -> tuple[Callable[[str], Client], tuple[str]]:
        return _of_this_process, (self.path,)

    def after_fork_in_child(self) -> None:
        self._connection = None
        self._loop = None

    async def _acquire(self, name: str, owner: int, options: Options, scoped: bool) -> Held:
        began = time.monotonic()
        connection = await self._connected(options.timeout)
        wait = None if options.timeout is None else options.timeout - (time.monotonic() - began)
        patience = None if wait is None else max(wait, 0) + ANSWER_GRACE
        call = await connection.call(lambda s: s.acquire(name, owner, options, wait), patience)
        call.result()
        assert call.hold is not None
        return Held(connection, Entry(connection.session, call.hold), scoped)

    async def _call(self, ask: Callable[[Session], Call[T]]) -> T:
        connection = await self._connected(None)
        return (await connection.call(ask, ANSWER_GRACE)).result()

    async def _connected(self, wait: float | None) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._move(loop)
        if self._connection is not None and self._connection.usable():
            return self._connection
        # From here on, so that those who wait for each other's attempts do not add up theirs.
        until = time.monotonic() + (CONNECT_WAIT if wait is None else min(wait, CONNECT_WAIT))
        async with self._connecting:
            if self._connection is None or not self._connection.usable():
                self._refuse_if_closed()
                connection = await self._connect(until)
                if self._closed:
                    connection.close()
                    self._refuse_if_closed()
                self._connection = connection
            return self._connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed; make a new one with locksidecar.aconnect()")

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this client belongs to another event loop: make one client for each loop")
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._connecting = asyncio.Lock()
        self._loop = loop

    async def _connect(self, until: float) -> _Connection:
        for pause in pauses():
            try:
                return await self._greet(_Connection(dial(self.path), self.path, self._clock))
            except Unavailable:  # it went away before it answered
                if time.monotonic() + pause > until:
                    raise
            except LocksidecarError:
                raise
            except OSError as e:
                if time.monotonic() + pause > until or not starting(e):
                    raise explain(self.path, e) from e
            await asyncio.sleep(pause)
        raise AssertionError("pauses() never ends")

    async def _greet(self, connection: _Connection) -> _Connection:
        try:
            asked = self._clock()
            answer = (await connection.call(Session.hello, ANSWER_GRACE)).result()
            greeted(self.path, answer, asked, self._clock())
        except BaseException:
            connection.close()
            raise
        return connection


_clients: Final[dict[str, Client]] = {}


def _of_this_process(path: str) -> Client:
    """The client that whatever was pickled with path shares in this process."""
    return _clients.setdefault(path, Client(path))


async def connect(path: str | os.PathLike[str] = "") -> Client:
    """A client that is connected. path as in Client."""
    client = Client(path)
    await client.connect()
    return client
