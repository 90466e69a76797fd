"""The client for threads."""

from __future__ import annotations

import _thread
import functools
import math
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, TypeVar, overload

from . import _fork, _held, _owners, _shared_session, _tracing
from . import _protocol as protocol
from ._calls import (
    Call,
    Options,
    acquire_call,
    check_forced,
    check_freed,
    connect_call,
    events_call,
    force_release_call,
    force_release_orphaned_call,
    hosts_call,
    info_call,
    list_call,
    make_options,
    metrics_call,
    ping_call,
    status_call,
    who_call,
)
from ._clock import clock_of
from ._core import Entry, Session
from ._decorator import is_write, within
from ._errors import (
    ClientClosed,
    Deadlock,
    LockLost,
    LocksidecarError,
    LockTimeout,
    NotHeld,
    Unconfirmed,
    add_note_about,
)
from ._handles import Block, Handles, block_of
from ._protocol import EventPage, HostInfo, LockInfo, OrphanedLock, Ownership, Status
from ._shared_session import SharedSession
from ._transport import Timeouts, Transport, socket_path

__all__ = ["Client", "Held", "Lock", "Permits", "RLock", "RWLock", "Semaphore", "connect"]

T = TypeVar("T")
P = ParamSpec("P")


class Held(_held.Held):
    """One acquired lock, from its acquire to its release. Threads may share it.

    If the sidecar is restarted meanwhile, the lock stays held, with its token. The next call that reads its state then
    reconnects first, which takes a moment; if no sidecar listens, it does not wait for one.
    """

    __slots__ = ()

    _shared: _shared_session.SharedSession

    def release(self, *, confirm: bool = False, timeout: float | None = None) -> None:
        """Releases the lock. Raises LockLost if it was lost before, NotHeld if it was released before.

        Without confirm this returns before Redis has executed the release. If the program then signals another host,
        that host may still find the lock taken. With confirm=True this releases the lock, and returns after Redis has
        executed the release. Without a confirmation it raises Unconfirmed; the lock is released in that case, too.

        timeout: how long to wait for the confirmation, in seconds; None: no limit; 0 or less: not at all. Without
        confirm it has no meaning. If the sidecar is restarted meanwhile, the client requests the confirmation from
        the new sidecar.

        If another owner on this host waits for the lock, the lock passes to that owner, and the release is
        confirmed at once.
        """
        self._shared.release(self._entry, Timeouts.for_confirm(timeout) if confirm else None)

    def downgrade(self) -> None:
        """Makes an exclusive hold of a read/write lock shared, with all its entries and its token.

        No other owner has the lock exclusive in between. It does nothing if the hold is shared. From the call on,
        `shared` is True, whatever this raises: then others may read. If the sidecar is restarted meanwhile, the new
        one downgrades the lock.

        Raises LockLost, NotHeld, BadRequest if it is no read/write lock, and Unavailable if the sidecar does not
        answer: then the lock may exclude others until its end, and the call may be repeated.
        """
        self._shared.downgrade(self._entry)


def _end_block(ended: list[Held], options: Options, exc: BaseException | None) -> None:
    """Releases the handles of a block that ends with exc, as far as its body has not released them."""
    confirm = Timeouts.for_confirm(options.confirm_timeout) if options.waits_for_confirm(exc) else None
    try:
        for held in ended:
            if not held.released:
                held._shared.release(held._entry, confirm)
    except (LockLost, NotHeld, Unconfirmed) as error:
        if exc is None:
            raise
        add_note_about(exc, error)


class Permits(Held):
    """Permits of a semaphore, from their acquire to their release. Made by Semaphore.acquire().

    A `with` block releases them at its end, and raises LockLost if they were lost. Threads may share them, and any of
    them may release them.
    """

    __slots__ = ("_options", "of", "permits")

    permits: Final[int]
    """How many are held."""
    of: Final[int]
    """How many the semaphore has for this hold: fewer than it was made with if a policy of the sidecar says so."""

    def __init__(self, shared: SharedSession, entry: Entry, of: int, options: Options) -> None:
        super().__init__(shared, entry, scoped=False)
        self.permits = entry.hold.permits
        self.of = of
        self._options = options

    def __enter__(self) -> Permits:
        entry = self._entry
        # Usually without a call: a signal handler that raises in one would leave the permits held without a block.
        if entry.released or entry.given_up or entry.session.inherited:
            entry.require_unreleased()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            _end_block([self], self._options, exc)
        except LocksidecarError:
            raise
        except BaseException:  # a signal handler raised: release the permits before this is raised
            self._shared.session.given_up += [self._entry]
            self._entry.given_up = True
            try:  # noqa: SIM105
                _thread.start_new_thread(self._shared.complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            self._shared.complete_given_up()
            raise


class _Acquirable:
    """What Lock and Semaphore have in common: a name, options, and the acquire."""

    __slots__ = ("__weakref__", "_client", "_handles", "_on_lost", "_options", "name")

    name: Final[str]

    def __init__(
        self, client: Client, name: str, options: Options, on_lost: Callable[[LockLost], object] | None
    ) -> None:
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost must be a function, not {on_lost!r}")
        self.name = name
        self._client = client
        self._options = options
        self._on_lost = on_lost
        self._handles: Handles[Held] | None = None

    def _acquire(self, options: Options, block: Block | None, permits: int = 0, of: int = 0) -> Held:
        """permits, of: 0: of a lock. Otherwise this returns Permits."""
        client = self._client
        owner = 0 if permits else _owners.of_context()
        call = acquire_call(self.name, owner, options, client._clock(), permits, of)
        state = client._process_state()
        shared = client._usable_session(state)
        if state.upper:
            client._require_no_use_by(owner, self.name, shared, state)
        held: Held | None = None
        given_up: list[Call[Any] | Entry] = [call]
        span = _tracing.start(self.name, options.timeout, permits)
        try:
            timeouts = Timeouts.for_acquire(options.timeout)
            while not shared.execute(call, timeouts):
                shared = client._usable_session(state)
            grant = call.result()
            assert call.hold is not None
            _owners.bind_to_task(call.hold)
            entry = Entry(shared.session, call.hold)
            if permits:
                held = Permits(shared, entry, grant.of or of, options)
            else:
                held = Held(shared, entry, block is not None, block)
            given_up = [entry]
            if self._handles is not None:
                self._handles.push(held)
            if self._on_lost is not None:
                shared.watch(held._entry, self._on_lost)
            if span is not None:
                _tracing.granted(span, grant.token)
        except LocksidecarError as e:
            if call.hold is not None:
                shared.session.given_up += given_up
                shared.complete_given_up()
            if span is not None:
                _tracing.failed(span, e)
            raise
        except BaseException as e:  # a signal handler raised: the caller does not get held
            shared.session.given_up += given_up
            if held is not None:
                held._scoped = False
                held._entry.given_up = True
            try:  # noqa: SIM105
                _thread.start_new_thread(self._undo_acquire, (shared, held))
            except RuntimeError:  # no thread can be started
                pass
            self._undo_acquire(shared, held)
            if span is not None:
                _tracing.failed(span, e)
            raise
        return held

    def _undo_acquire(self, shared: SharedSession, held: Held | None) -> None:
        shared.complete_interrupted()
        if held is not None and self._handles is not None:
            self._handles.remove(held)

    def __repr__(self) -> str:
        return f"<locksidecar.{type(self).__name__} {self.name!r}>"

    def _pickled(self, *state: object) -> tuple[type[Any], tuple[Any, ...]]:
        # A pickle of a lock without on_lost can be loaded by version 0.1.
        return type(self), state if self._on_lost is None else (*state, self._on_lost)


class Lock(_Acquirable):
    """A lock by name, used like a threading.Lock. Made by Client.lock().

    The thread that acquired it holds it. It is not re-entrant: a thread that waits for a lock that it holds itself
    gets Deadlock. Threads may share the object; any of them may release it.

    A thread pool may run each call in a context of its own, as those of anyio and FastAPI do. Then the call is the
    holder: another call on the same thread waits as another thread does. A block may be left by another call or thread
    than the one that has entered it.

    An acquire blocks its thread. Under asyncio use locksidecar.aio: here all tasks of a loop are one owner, and a task
    gets Deadlock for a lock that another task holds.
    """

    __slots__ = ()

    def __init__(
        self, client: Client, name: str, options: Options, on_lost: Callable[[LockLost], object] | None = None
    ) -> None:
        super().__init__(client, name, options, on_lost)
        self._handles: Handles[Held] = Handles(any_owner=not options.reentrant)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Returns whether the lock was acquired in time.

        timeout: seconds to wait; None: the timeout that the lock was made with; -1: no limit.

        False means that another owner holds the lock. If it is not known whether the lock is free, because the sidecar
        does not answer or Redis cannot be reached, this raises Unavailable: 2 seconds after the start or 1 second after
        the timeout, whichever is later.
        """
        try:
            self._acquire(self._options.for_acquire(blocking, timeout), None)
        except LockTimeout:
            return False
        return True

    def release(self, *, confirm: bool = False, timeout: float | None = None) -> None:
        """Releases the lock. Raises LockLost if it was lost before, NotHeld if it is not held.

        confirm, timeout: as in Held.release(). The confirm and confirm_timeout that the lock was made with do not apply
        here.
        """
        held: Held | None = None
        try:
            held = self._handle_to_release()
            held.release(confirm=confirm, timeout=timeout)
        except LocksidecarError:
            raise
        except BaseException:  # a signal handler raised: release the lock before this is raised
            if held is not None:
                held._shared.session.given_up += [held._entry]
                held._entry.given_up = True
                try:  # noqa: SIM105
                    _thread.start_new_thread(held._shared.complete_interrupted, ())
                except RuntimeError:  # no thread can be started
                    pass
            else:
                held = self._handle_to_release()
                held._shared.session.given_up += [held._entry]
                held._entry.given_up = True
            held._shared.complete_given_up()
            raise
        finally:
            if held is not None and held.released and not held._scoped:
                self._handles.remove(held)

    def _handle_to_release(self) -> Held:
        held = self._handles.handle_to_release(_owners.of_context())
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held: it was released before, or never acquired here")
        return held

    def locked(self) -> bool:
        """Whether a thread of this process holds the lock through this object.

        False does not mean that the lock is free: another object, process or host may hold it. Client.who() names the
        holder on any host, and Client.info() that on this host. Only an acquire with timeout 0 finds out whether the
        lock can be had.
        """
        return any(h.remaining > 0 for h in self._handles)

    @property
    def held(self) -> Held:
        """The Held of the calling thread; raises NotHeld if it does not hold the lock through this object."""
        held = self._handles.newest(_owners.of_context())
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held by this thread")
        return held

    @property
    def token(self) -> int:
        """The fencing token of `held`."""
        return self.held.token

    def __enter__(self) -> Held:
        return self._acquire(self._options, block_of(sys._getframe(1)))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended: list[Held] | None = None
        try:
            ended = self._handles.handles_of_block(_owners.of_context, sys._getframe(1))
            self._end_block(ended, exc)
        except LocksidecarError:
            raise
        except BaseException:  # a signal handler raised: release the lock before this is raised
            if ended:
                first, last = ended[0], ended[-1]  # there are at most two: see Handles.handles_of_block()
                first._scoped = False
                first._shared.session.given_up += [first._entry]
                first._entry.given_up = True
                last._shared.session.given_up += [last._entry]
                last._entry.given_up = True
                try:  # noqa: SIM105
                    _thread.start_new_thread(self._complete_end, (ended,))
                except RuntimeError:  # no thread can be started
                    pass
            if ended is None:
                ended = self._handles.handles_of_block(_owners.of_context, sys._getframe(1))
            self._complete_end(ended)
            raise

    def _complete_end(self, ended: list[Held]) -> None:
        """Completes the end of a block that a signal handler interrupted."""
        for held in ended:
            held._shared.session.given_up += [held._entry]
            held._entry.given_up = True
            held._scoped = False
            held._shared.complete_given_up()
            self._handles.remove(held)

    def _end_block(self, ended: list[Held], exc: BaseException | None) -> None:
        if not ended:
            raise NotHeld(f"the lock {self.name!r} is not held by the thread that leaves this with block")
        for held in ended:
            held._scoped = False
        try:
            _end_block(ended, self._options, exc)
        finally:
            for held in ended:
                self._handles.remove(held)

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        return self._pickled(self._client, self.name, self._options)


class RLock(Lock):
    """A lock by name, used like a threading.RLock. Made by Client.rlock().

    The thread that holds it may acquire it again. It must release it as often, and no other thread may release it,
    except at the end of a block. A task of an event loop gets Deadlock for a lock that another task on its thread
    holds.

    In a thread pool that runs each call in a context of its own, the call is the holder, as for a Lock: another call
    waits, also one of the same request.
    """

    __slots__ = ()


class RWLock:
    """A read/write lock by name. Made by Client.rwlock().

    Over all hosts, one owner has it exclusive, or any number of owners share it. An owner is a thread, as for an RLock,
    and may acquire the lock again in the mode that it has; with write(), also shared. A thread that has it shared and
    asks for write() gets Deadlock. Threads may share the object.

    The token of a shared hold is larger than that of each earlier exclusive hold. Store it with what was derived under
    the lock, and keep what has the larger token: then nothing that was derived before a write replaces what was derived
    after it.
    """

    __slots__ = ("__weakref__", "_client", "_on_lost", "_options", "name")

    name: Final[str]

    def __init__(
        self, client: Client, name: str, options: Options, on_lost: Callable[[LockLost], object] | None = None
    ) -> None:
        self.name = name
        self._client = client
        self._options = options
        self._on_lost = on_lost

    def read(self, *, timeout: float | None = None) -> RLock:
        """The lock as readers take it: `with rw.read(timeout=2) as held:`. It excludes those of write() only.

        timeout: how long to wait; None: the timeout that the read/write lock was made with; -1: no limit; 0: try once.
        """
        return RLock(self._client, self.name, self._options.for_mode("shared", timeout), self._on_lost)

    def write(self, *, timeout: float | None = None, keep: float = 0.0) -> RLock:
        """The lock as a writer takes it: `with rw.write() as held:`. It excludes all others.

        timeout: as for read(). keep: as for Client.lock().
        """
        return RLock(self._client, self.name, self._options.for_mode("exclusive", timeout, keep), self._on_lost)

    def synchronized(self, mode: Literal["read", "write"]) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Makes a decorator: the function runs while its thread has the lock, by read() or write().

        As Client.synchronized(), with reentrant.
        """
        make = self.write if is_write(mode) else self.read
        return within(lambda *args, **kwargs: make())

    def __repr__(self) -> str:
        return f"<locksidecar.RWLock {self.name!r}>"

    def __reduce__(self) -> tuple[type[RWLock], tuple[Any, ...]]:
        return type(self), (self._client, self.name, self._options, self._on_lost)


class Semaphore(_Acquirable):
    """A semaphore by name. Made by Client.semaphore().

    At most so many permits as it has are held at one time, by all clients on all hosts together. Nothing stores that
    number: it is that of each request. So a program with another number takes no permit away.

    Each acquire is a hold of its own, without an owner. A thread that waits for permits while it holds some may wait
    for itself, without end. Threads may share the object.
    """

    __slots__ = ("permits",)

    permits: Final[int]
    """How many there are."""

    def __init__(
        self,
        client: Client,
        name: str,
        permits: int,
        options: Options,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> None:
        super().__init__(client, name, options, on_lost)
        self.permits = protocol.check_positive("permits", permits, protocol.MAX_PERMITS)

    @overload
    def acquire(self, permits: int = 1, *, blocking: Literal[True] = True, timeout: float | None = None) -> Permits: ...

    @overload
    def acquire(self, permits: int = 1, *, blocking: bool, timeout: float | None = None) -> Permits | None: ...

    def acquire(self, permits: int = 1, *, blocking: bool = True, timeout: float | None = None) -> Permits | None:
        """Acquires so many permits at one time, and returns what releases them: `with semaphore.acquire(2):`.

        Raises LockTimeout if they are not free in time. With blocking=False it does not wait, and returns None then.

        timeout: seconds to wait; None: the timeout that the semaphore was made with; -1: no limit; 0: try once.

        Requests of all hosts are granted in their order: one that does not fit yet keeps those after it waiting.
        Otherwise as Lock.acquire().
        """
        protocol.check_positive("permits", permits, self.permits)
        try:
            # No cast(): a signal handler that raises in it would leave the permits held.
            return self._acquire(self._options.for_acquire(blocking, timeout), None, permits, self.permits)  # type: ignore[return-value]
        except LockTimeout:
            if blocking:
                raise
            return None

    def synchronized(self, permits: int = 1) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Makes a decorator: the function runs while so many permits are held.

        As Client.synchronized(). Under re-entry, each call acquires permits of its own.
        """
        protocol.check_positive("permits", permits, self.permits)
        return within(lambda *args, **kwargs: self.acquire(permits))

    def __repr__(self) -> str:
        return f"<locksidecar.Semaphore {self.name!r} permits={self.permits}>"

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        return self._pickled(self._client, self.name, self.permits, self._options)


class _ProcessState:
    """The part of a client that belongs to one process.

    It is made at the first use in the process, when monkey patching has replaced threading.Lock.
    """

    __slots__ = ("session_lock", "shared", "upper")

    def __init__(self) -> None:
        # Guards shared, which is replaced when its session has failed. Lock order: before SharedSession.mutex.
        self.session_lock = threading.RLock()
        self.shared: SharedSession | None = None
        # Sessions of frames that have interrupted a change of shared: see _shared_session.py. They stay for later ones.
        self.upper: list[SharedSession] = []

    def sessions(self) -> list[SharedSession]:
        return [*self.upper, *([] if self.shared is None else [self.shared])]


class Client:
    """One process's session with the sidecar of its host. Threads share it.

    It connects at its first use, and reconnects after a disconnect: when the sidecar is killed, restarted or upgraded,
    locks stay held and waits continue. After a fork, the child's copy connects again, with a new session, and holds
    nothing. A pickled client is the path of the socket and the prefix.
    """

    def __init__(self, path: str | os.PathLike[str] = "", *, name_prefix: str = "") -> None:
        """path: the sidecar's socket. Empty: $LOCKSIDECAR_SOCKET, or /run/locksidecar/locksidecar.sock. A relative path
        is that from the present working directory, also after a chdir().

        name_prefix: put before the names that lock(), rlock(), rwlock(), semaphore(), info() and force_release() are
        given. The name of a Lock, of a Held, and in errors and in list() is the whole one.
        """
        self.path: str = socket_path(path)
        self.name_prefix: str = protocol.check_prefix(name_prefix)
        self._clock: Callable[[], int] = clock_of(self.path)
        self._closed = False
        # By process id, so that a forked child does not use its copy of the parent's.
        self._processes: dict[int, _ProcessState] = {}
        _fork.register(self)

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        keep: float = 0.0,
        confirm: bool = False,
        confirm_timeout: float | None = None,
        fair: bool = False,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> Lock:
        """Makes a lock that is used like threading.Lock; this does not acquire it. Durations are in seconds.

        timeout: how long to wait for the lock; None or -1: no limit; 0: try once.
        lease: how long the lock is held at most, without renewal; None: the sidecar renews it until the release.
        max_hold: how long the lock is held at most, even if it is renewed; None: no limit.
        crash_delay: how much longer the lock stays held when this process dies.
        keep: how long the lock stays held from the acquire on, up to a day: also after the release, and if this
        process, the sidecar or the host dies. Of all hosts that start a job at one time with timeout=0, one runs it.
        confirm: whether a with block waits until Redis has executed the release, like held.release(confirm=True), and
        raises Unconfirmed without a confirmation. If the body raises an exception, that exception is raised instead,
        with a note (Python 3.11). A block that KeyboardInterrupt or GeneratorExit leaves releases without waiting.
        confirm_timeout: how long the block waits for the confirmation; None: no limit.
        fair: whether such acquires are granted over all hosts in the order in which they reach Redis. Without it a lock
        stays on one host for several grants, which is faster. It has no effect with timeout 0.
        on_lost: called with the LockLost, once, if the lock is lost before its release. A background thread calls it at
        once; it runs while such a lock is held. Without on_lost, a thread finds the loss in check() or at the end of
        the block.
        """
        options = make_options(timeout, lease, max_hold, crash_delay, False, confirm, confirm_timeout, fair, keep)
        return Lock(self, self._whole(name), options, on_lost)

    def rlock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        keep: float = 0.0,
        confirm: bool = False,
        confirm_timeout: float | None = None,
        fair: bool = False,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> RLock:
        """Makes a lock that is used like threading.RLock: the thread that holds it may acquire it again.

        Otherwise as lock(). The end of an inner block is confirmed at once: the lock stays held.
        """
        options = make_options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout, fair, keep)
        return RLock(self, self._whole(name), options, on_lost)

    def rwlock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        confirm: bool = False,
        confirm_timeout: float | None = None,
        fair: bool = False,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> RWLock:
        """Makes a read/write lock; this acquires nothing. Readers share it, and a writer has it alone, over all hosts.

        The arguments are those of lock(), for the hold of each read() and write(). A name is that of a lock, a
        read/write lock or a semaphore, and of one of them at a time.
        """
        options = make_options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout, fair, 0.0)
        return RWLock(self, self._whole(name), options, on_lost)

    def semaphore(
        self,
        name: str,
        *,
        permits: int,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        confirm: bool = False,
        confirm_timeout: float | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> Semaphore:
        """Makes a semaphore; this acquires nothing. Of all hosts, at most so many permits are held at one time.

        permits: how many there are, up to 65535. The other arguments are those of lock(), for the hold of each acquire.

        The token of a hold is that of no other one, but holds exist at one time: it is no fence. A name is that of a
        lock, a read/write lock or a semaphore, and of one of them at a time.
        """
        # reentrant=True leaves the field out of the request, which does not have it.
        options = make_options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout, False, 0.0)
        return Semaphore(self, self._whole(name), permits, options, on_lost)

    def synchronized(
        self,
        name: str | Callable[..., str],
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        crash_delay: float = 0.0,
        keep: float = 0.0,
        reentrant: bool = False,
        fair: bool = False,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Makes a decorator: the function runs while its thread holds the lock.

        name: the name of the lock, or a function that returns it; it gets the arguments of each call.
        reentrant: the lock is an rlock(), so the function may call itself.

        The other arguments are those of lock(). The call raises LockTimeout, and LockLost after the function has
        returned. A function that needs the fencing token uses a with block instead.
        """
        make = self.rlock if reentrant else self.lock
        make_lock = functools.partial(
            make,
            timeout=timeout,
            lease=lease,
            max_hold=max_hold,
            crash_delay=crash_delay,
            keep=keep,
            fair=fair,
            on_lost=on_lost,
        )
        make_lock(name if isinstance(name, str) else "x")  # raises if an argument is wrong
        return within(lambda *args, **kwargs: make_lock(name if isinstance(name, str) else name(*args, **kwargs)))

    def info(self, name: str, *, host: str | None = None) -> LockInfo | None:
        """Returns what the sidecar knows about the lock; None: no owner on this host holds it or waits for it.

        None does not mean that the lock is free: the sidecar does not ask Redis, and an owner on another host may hold
        it. The sidecar knows that ("remote") while an owner on this host waits for the lock, and for a moment after.
        who() reads Redis.

        host: asks the sidecar of another host, by the name of the host or the uuid of the sidecar. Raises Unavailable
        if it does not answer within half a second.
        """
        return self._call(info_call(self._whole(name), host)).lock

    def list(self, *, host: str | None = None) -> tuple[LockInfo, ...]:
        """Returns all locks that the sidecar knows, or the sidecar of another host, as in info()."""
        locks: dict[str, LockInfo] = {}
        after = 0
        while True:
            page = self._call(list_call(after, host))
            locks.update((row.name, row) for row in page.locks)
            if not page.next:
                return tuple(locks.values())
            after = page.next

    def events(self, after: int = 0, *, wait: bool = False) -> EventPage:
        """Returns what happened to locks of this host.

        after is 0 for the oldest event that the sidecar has, or the next of an earlier page. With wait, the call
        returns when there is an event.
        """
        return self._call(events_call(after, wait), Timeouts(math.inf if wait else 0.0))

    def who(self, name: str) -> Ownership:
        """Returns who has the lock and who waits for it, on all hosts.

        The sidecar reads Redis once and asks the sidecar of the owner. That takes a second at most.
        """
        return self._call(who_call(self._whole(name)))

    def status(self, *, host: str | None = None) -> Status:
        """Returns how the sidecar and its locks are, or the sidecar of another host, as in info().

        The times of another host are of its own clock.
        """
        return self._call(status_call(host))

    def hosts(self) -> tuple[HostInfo, ...]:
        """Returns the sidecars that use the same Redis with the same key prefix, this one among them."""
        found: dict[str, HostInfo] = {}
        after = ""
        while True:
            page = self._call(hosts_call(after))
            found.update((row.sidecar, row) for row in page.hosts)
            if not page.more or not page.hosts:
                return tuple(found.values())
            after = page.hosts[-1].sidecar

    def force_release(self, name: str, *, hold: int | None = None, host: str | None = None) -> None:
        """Ends the hold of any owner on this host, of a semaphore all holds. Raises NotHeld if there is none.

        hold: the number of a hold, as in LockInfo.holders: ends this one alone.
        host: asks the sidecar of another host, as in info(), for root and the user of this sidecar, and where the other
        one permits it.
        """
        check_forced(name, hold, self._call(force_release_call(self._whole(name), host, hold)))

    def force_release_orphaned(self, name: str, *, sidecar: str | None = None) -> OrphanedLock:
        """Frees a lock whose sidecar is gone for good, because its host died, or all permits of such a sidecar.

        Root and the user of this sidecar may do it.
        sidecar: the uuid of the one that is gone, as in LockOwner; needed for a semaphore of which several other hosts
        have permits.

        Raises NotHeld if no client has the lock, and Denied if it is not orphaned: its sidecar may be alive, or is this
        one, or the lock is that of a foreign client. A sidecar that is only cut off from Redis cannot be told from one
        that is gone: its processes then rely on the lock until their deadline, within ttl_ms of the result. Other calls
        of this client wait for the answer, for a second and a half at most.
        """
        return check_freed(name, sidecar, self._call(force_release_orphaned_call(self._whole(name), sidecar)))

    def metrics(self) -> str:
        """Returns what the sidecar counts, in the text format of Prometheus."""
        text = ""
        after = 0
        while True:
            page = self._call(metrics_call(after))
            text += page.text
            if not page.next:
                return text
            after = page.next

    def ping(self) -> str:
        """Returns the state of the sidecar's Redis: "ok", or a sentence that says what is wrong."""
        return self._call(ping_call()).redis

    def close(self) -> None:
        """Ends the session. Locks that are held are lost, and calls that wait fail.

        Waits up to a second for the sidecar's answer. If none comes, and the sidecar may keep locks of this session, a
        background thread goes on until it has answered, or until their leases have ended.
        """
        self._closed = True
        state = self._process_state()
        with state.session_lock:
            sessions = state.sessions()
            state.shared = None
            state.upper = []
        for shared in sessions:
            shared.close()

    def connect(self) -> None:
        """Connects, if there is no connection; raises if no sidecar listens."""
        self._call(connect_call())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<locksidecar.Client {self.path}>"

    def __reduce__(self) -> tuple[Callable[..., Client], tuple[str, ...]]:
        # A pickle of a client without a prefix can be loaded by version 0.1.
        return _of_this_process, (self.path, self.name_prefix) if self.name_prefix else (self.path,)

    def _whole(self, name: str) -> str:
        """The name of a lock with the prefix."""
        if self.name_prefix and isinstance(name, str):
            name = self.name_prefix + name
        return protocol.check_name(name)

    @property
    def _shared(self) -> SharedSession | None:
        return self._process_state().shared

    def _process_state(self) -> _ProcessState:
        # Not every fork runs the hooks of os.register_at_fork(): uWSGI forks in C.
        pid = _fork.process_id()
        state = self._processes.get(pid)
        if state is None:
            state = self._processes.setdefault(pid, _ProcessState())
            for other in [p for p in self._processes if p != pid]:
                inherited = self._processes.pop(other, None)
                for shared in [] if inherited is None else inherited.sessions():
                    shared.reset_if_forked()  # closes this process's copy of the socket
        return state

    def _after_fork_in_child(self) -> None:
        self._processes = {}

    def _call(self, call: Call[T], timeouts: Timeouts | None = None) -> T:
        timeouts = timeouts or Timeouts()
        while not self._usable_session(self._process_state()).execute(call, timeouts):
            pass
        return call.result()

    def _usable_session(self, state: _ProcessState) -> SharedSession:
        """A session that is not known to have failed. state is that of this process."""
        shared = state.shared
        if shared is not None and shared.is_usable():
            return shared
        lock_is_owned: bool = state.session_lock._is_owned()  # type: ignore[attr-defined]
        if lock_is_owned or (shared is not None and shared.is_inside()):
            return self._upper_session(state)
        with state.session_lock:
            shared = state.shared
            if shared is None or not shared.is_usable():
                state.shared = shared = self._new_session()
                if self._closed:  # by a signal handler, which did not find the new session
                    state.shared = None
                    shared.close()
                    self._require_open()
            return shared

    def _upper_session(self, state: _ProcessState) -> SharedSession:
        """The session for a frame that has interrupted a change of the client's session on the same thread."""
        for shared in list(state.upper):
            if shared.is_usable():
                return shared
        shared = self._new_session()
        state.upper = [*[s for s in state.upper if s.session.failure is None], shared]
        return shared

    def _new_session(self) -> SharedSession:
        self._require_open()
        return SharedSession(Transport(Session(self.path), self._clock), self._clock)

    def _require_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed; make a new one with locksidecar.connect()")

    def _require_no_use_by(self, owner: int, name: str, shared: SharedSession, state: _ProcessState) -> None:
        """Raises Deadlock if the wait for the lock would not end, because this process uses it.

        The sidecar cannot detect that. For it, sessions have different owners. While a frame of this thread is inside
        of a session, the other threads cannot release their locks. owner 0, of permits, does not exclude itself.
        """
        for other in state.sessions():
            if other.is_inside():
                is_used = other.session.is_used(name)
            elif owner and other is not shared:
                is_used = other.session.is_used_by(name, owner)
            else:
                is_used = False
            if is_used:
                raise Deadlock(
                    f"acquire {name!r}: this process holds it, waits for it or releases it already, and cannot go on "
                    "before the signal handler or the __del__ that acquires it here has ended"
                )


_clients: dict[tuple[str, str], Client] = {}


def _of_this_process(path: str, name_prefix: str = "") -> Client:
    """Returns the client that all unpickled locks and clients with this path and prefix share.

    Pickles refer to this function by name.
    """
    return _clients.setdefault((path, name_prefix), Client(path, name_prefix=name_prefix))


def connect(path: str | os.PathLike[str] = "", *, name_prefix: str = "") -> Client:
    """Returns a connected client. path, name_prefix: as in Client."""
    client = Client(path, name_prefix=name_prefix)
    client.connect()
    return client
