"""The client for asyncio.

The tasks of one event loop share a session. A client belongs to the loop in which it first connected. After a fork,
or in a new loop after the first one was closed, it connects again, with a new session.

A signal handler, and a __del__ that the garbage collector runs, may use the client. It is a frame on top of a frame
that it has interrupted on the same thread. That one may be INSIDE: in a method of _AsyncSession, which may be changing
the session::

                     not INSIDE        INSIDE
    read             as usual          the last known state
    release          as usual          given up: the next callback of the loop completes it, or the interrupted frame
    confirm          as usual          the same; the release is confirmed when the coroutine is awaited
    abandon a call   as usual          given up
    a coroutine      as usual          continues in the next iteration of the loop (a task may start eagerly)

INSIDE, the interrupted frame continues with what it had read before. So the upper frame changes nothing of the
session, as in _shared_session.py. A task may be cancelled at any point: its future may be DONE when its call is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from . import _fork, _held, _log, _owners, _tracing
from . import _protocol as protocol
from ._calls import (
    Call,
    CallState,
    Confirm,
    Hold,
    Options,
    acquire_call,
    check_forced,
    check_freed,
    confirm_call,
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
from ._core import Entry, Session, Stage
from ._decorator import is_write, within_async
from ._errors import ClientClosed, LockLost, LocksidecarError, LockTimeout, NotHeld, Unconfirmed, add_note_about
from ._handles import Handles
from ._protocol import EventPage, HostInfo, LockInfo, OrphanedLock, Ownership, Status
from ._shared_session import INTERRUPT_RETRIES, SharedSession
from ._transport import BYE_WAIT, Socket, Timeouts, Transport, socket_path
from ._waits import SLOW, WaitWatch

__all__ = ["Client", "Held", "Lock", "Permits", "RLock", "RWLock", "Semaphore", "connect"]

T = TypeVar("T")
P = ParamSpec("P")
M = TypeVar("M", bound="AbstractAsyncContextManager[object]")


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "locksidecar.aio runs in an asyncio event loop, and none runs here. Under trio use the client for "
            "threads: await trio.to_thread.run_sync(lock.acquire)"
        ) from None


@dataclass(slots=True, eq=False)
class _CallWaiter:
    """A task that waits until a call is DONE."""

    call: Call[Any]
    future: asyncio.Future[None]
    timeouts: Timeouts
    timer: asyncio.TimerHandle | None = None
    watch: asyncio.TimerHandle | None = None  # of an acquire


class _AsyncSession:
    """One session, shared by the tasks of an event loop.

    The loop watches the socket, so events are processed when they arrive. It also runs the attempts to reconnect.
    """

    def __init__(self, transport: Transport, clock: Callable[[], int]) -> None:
        self.loop: asyncio.AbstractEventLoop = _running_loop()
        self.pid: int = os.getpid()
        self.transport = transport
        self.session: Session = transport.session
        self.clock = clock
        self._waiting: dict[Call[Any], _CallWaiter] = {}
        self._bodies: dict[Hold, list[_GuardedBody]] = {}  # cancelled if the hold is lost
        self._socket: Socket | None = None  # the one that the loop watches
        self._writing = False  # the loop watches whether the socket is writable
        self._next_attempt: asyncio.TimerHandle | None = None  # to connect
        self._reconnect_until = 0  # the latest deadline of the holds at the disconnect
        self._handed_over = False  # to the releaser of a SharedSession: nothing is done here any more
        # A frame is INSIDE. Each method that changes the session sets it, and restores it without a call.
        self._inside = False
        _fork.register(self)

    # --- Calls ---

    def when_outside(self) -> Awaitable[None]:
        """To be awaited at the start of a coroutine that changes the session: no frame is INSIDE then.

        A task of an upper frame may run at once, in a loop with eager tasks.
        """
        return asyncio.sleep(0) if self._inside else _COMPLETED

    async def execute(self, call: Call[Any], timeouts: Timeouts) -> None:
        """Sends call and waits until it is DONE, with an answer or an error.

        The caller has awaited when_outside(). If this raises, call is abandoned, unless it is DONE.
        """
        try:
            self._inside = True
            try:
                self.session.submit(call, self.clock())
            finally:
                self._inside = False
            await self._wait(call, timeouts)
        except BaseException:
            self.session.given_up += [call]
            self.complete_given_up()
            raise

    async def _wait(self, call: Call[Any], timeouts: Timeouts) -> None:
        self._flush()
        if self.transport.sock is None:
            self._connect()
        if call.done:
            return
        waiter = self._waiting[call] = _CallWaiter(call, self.loop.create_future(), timeouts)
        try:
            if call.done:  # an upper frame has read the answer, before the call had a waiter
                return
            if self._next_attempt is None and self.transport.sock is None:
                self._connect()  # now that a call waits, attempts are repeated
            self._set_timer(waiter)
            if call.op == "acquire":
                waiter.watch = self.loop.call_later(SLOW, self._look, waiter, WaitWatch(call.name))
            await waiter.future
        finally:
            self._waiting.pop(call, None)
            if waiter.timer is not None:
                waiter.timer.cancel()
            if waiter.watch is not None:
                waiter.watch.cancel()

    def _look(self, waiter: _CallWaiter, watch: WaitWatch) -> None:
        now = time.monotonic()
        if self._inside:
            look_at = now  # when the interrupted frame has ended
        else:
            self._inside = True
            try:
                look_at = watch.look(self.session, now, self.clock())
                self._flush()
            finally:
                self._inside = False
        if look_at != math.inf:
            waiter.watch = self.loop.call_later(look_at - now, self._look, waiter, watch)

    def _set_timer(self, waiter: _CallWaiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None
        if waiter.future.done():
            return
        left = self.transport.expires_at(waiter.timeouts) - time.monotonic()
        if left <= 0:
            error = self.transport.timeout_error(waiter.call)
            with contextlib.suppress(asyncio.InvalidStateError):  # an upper frame has cancelled the task
                waiter.future.set_exception(error)
        elif left != math.inf:
            waiter.timer = self.loop.call_later(left, self._set_timer, waiter)

    def complete_given_up(self) -> None:
        """Completes what the caller has added to Session.given_up, before the call of anything that can be interrupted.

        A grant to an abandoned acquire, now or later, is released: the loop reads it. If a signal handler interrupts
        this, it starts again, and raises the exception at the end. INSIDE, a callback of the loop completes it.
        """
        if self._inside:
            self._complete_soon()
            return
        interrupt: BaseException | None = None
        for _ in INTERRUPT_RETRIES:
            try:
                self._inside = True
                self.session.complete_given_up(self.clock())
                self._flush_releases()
                break
            except BaseException as e:
                interrupt = e
            finally:
                self._inside = False
        if interrupt is not None:
            raise interrupt

    def _complete_soon(self) -> None:
        """For a frame INSIDE. Without a loop that runs, the next use of the session completes what was given up."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.complete_given_up)

    # --- The socket ---

    def _connect(self) -> None:
        """Connects if a sidecar listens. Otherwise schedules another attempt, while a connection is needed."""
        outer = self._inside
        self._inside = True
        try:
            self._connect_inside()
        finally:
            self._inside = outer

    def _connect_inside(self) -> None:
        if self._next_attempt is not None:
            self._next_attempt.cancel()
            self._next_attempt = None
        if not self.transport.connect():
            in_use = self._waiting or self.clock() < max(self._reconnect_until, self.session.unreleased_until)
            if in_use and self.session.stage is Stage.DISCONNECTED and not self.loop.is_closed():
                self._next_attempt = self.loop.call_later(self.transport.next_backoff(), self._connect)
        self._flush()

    def _receive(self) -> None:
        if self._handed_over:
            return
        outer = self._inside
        self._inside = True
        try:
            try:
                self.transport.receive()
            except BaseException:
                self._receive_soon()
                raise
            finally:
                self._notify()
            if self.session.unsent:  # the release of a grant to an abandoned acquire, or the next step of the handshake
                self._flush()
        finally:
            self._inside = outer

    def _receive_soon(self) -> None:
        """Schedules the processing of what was read when a signal handler raised: the socket is not readable again."""
        if not self.loop.is_closed():
            self.loop.call_soon(self._receive)

    def _process_arrived(self) -> None:
        """Processes what has arrived, and completes what a signal handler interrupted."""
        self.reset_if_forked()
        if self.transport.readable():
            self._receive()

    def _flush(self) -> None:
        if self._handed_over:
            return
        outer = self._inside
        self._inside = True
        try:
            self.transport.verify()
            done = self.transport.flush()
            if self.transport.sock is not self._socket:
                self._update_reader()
            if not done and not self._writing:
                self._writing = True
                self.loop.add_writer(self._fd(), self._flush)
            elif done and self._writing:
                self._writing = False
                self.loop.remove_writer(self._fd())
        except BaseException:
            self._receive_soon()
            raise
        finally:
            try:
                self._notify()
            finally:
                self._inside = outer

    def _fd(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def _update_reader(self) -> None:
        """Makes the loop watch the current socket, or schedules an attempt to connect if there is none."""
        sock = self.transport.sock if self.session.stage is not Stage.ENDED else None
        if sock is self._socket:
            return
        previous, self._socket = self._socket, sock
        self._writing = False
        if self.loop.is_closed():
            return
        if previous is not None:
            self.loop.remove_reader(previous.fileno())
            self.loop.remove_writer(previous.fileno())
        if sock is not None:
            self.loop.add_reader(sock.fileno(), self._receive)
        elif self.session.stage is Stage.DISCONNECTED and self._next_attempt is None:
            self._reconnect_until = self.session.latest_deadline()
            self._next_attempt = self.loop.call_later(self.transport.next_backoff(), self._connect)
        self.transport.close_ended_sockets()
        for waiter in list(self._waiting.values()):
            self._set_timer(waiter)

    def _notify(self) -> None:
        """Wakes the tasks whose calls are DONE, and cancels the bodies whose locks are lost. The caller is INSIDE.

        If it is interrupted, its next run continues.
        """
        if self._handed_over:
            return
        session = self.session
        while session.done_calls:
            waiter = self._waiting.get(session.done_calls[0])
            if waiter is not None and not waiter.future.done():
                try:  # noqa: SIM105
                    waiter.future.set_result(None)
                except asyncio.InvalidStateError:  # an upper frame has just cancelled the task
                    pass
            session.done_calls.pop(0)
        while session.lost_holds:
            for body in tuple(self._bodies.get(session.lost_holds[0], ())):
                body.cancel_soon()
            session.lost_holds.pop(0)
        if session.log:
            _log.write(session.log)
        if self.transport.sock is not self._socket or session.failure is not None:
            self._update_reader()
            self.transport.close_if_unneeded()

    # --- Holds ---

    def check_usable(self) -> bool:
        """Whether a call can be executed. No frame is INSIDE."""
        self._process_arrived()
        return self.session.failure is None

    def check(self, entry: Entry) -> None:
        self._read_state(entry.check, entry)

    def lost(self, entry: Entry) -> str:
        return self._read_state(entry.lost, entry)

    def remaining(self, entry: Entry) -> int:
        return self._read_state(entry.remaining, entry)

    def deadline(self, entry: Entry) -> int:
        return self._read_state(entry.deadline, entry)

    def _read_state(self, read: Callable[[int, bool], T], entry: Entry) -> T:
        """Returns read(now, True), after everything that had arrived by now was processed.

        INSIDE it processes nothing, and returns the last known state.
        """
        if self._inside:
            self.reset_if_forked()
            return read(self.clock(), False)
        self._inside = True
        try:
            while True:
                state = read(self._refresh(entry), True)
                # The process may have been stopped after it had read. Then a later deadline may have arrived.
                if entry.has_ended() or self.clock() < self.session.deadline(entry.hold):
                    return state
        finally:
            try:
                self._notify()
            finally:
                self._inside = False

    def _refresh(self, entry: Entry) -> int:
        """Processes what has arrived. Returns the time before it began: the read_at of Session.update_lost()."""
        read_at = self.clock()
        self._process_arrived()
        if self._reconnect_if_expired(entry):
            read_at = self.clock()
            self._process_arrived()
        return read_at

    def release(self, entry: Entry) -> None:
        if self._inside:
            self._release_later(entry)
            return
        try:
            self._inside = True
            try:
                read_at = self._refresh(entry)
                try:
                    entry.release(read_at)
                finally:
                    self._flush_releases()
            finally:
                self._inside = False
        except LocksidecarError:
            raise
        except BaseException:  # a signal handler raised: release the lock before this is raised
            self.session.given_up += [entry]
            entry.given_up = True
            self.complete_given_up()
            raise

    def _release_later(self, entry: Entry) -> None:
        """Gives entry up, for a frame INSIDE."""
        self.reset_if_forked()
        entry.require_unreleased()
        reason = entry.lost(self.clock(), False)
        self.session.given_up += [entry]
        entry.given_up = True
        self._complete_soon()
        if reason:
            raise entry.loss_error(reason)

    async def downgrade(self, entry: Entry) -> None:
        """Makes the hold of entry shared, with all its entries."""
        await self.when_outside()
        self.check(entry)
        call = entry.begin_downgrade()
        if call is None:
            return
        await self.execute(call, Timeouts())
        try:
            entry.end_downgrade(call)
        except NotHeld:
            self.check(entry)  # raises LockLost
            raise

    def release_confirmed(self, entry: Entry) -> Confirm:
        """Returns the request for the confirmation. INSIDE, it is NEW, and confirmation() submits it."""
        if self._inside:
            self._release_later(entry)
            return confirm_call(entry.hold)
        given_up: list[Call[Any] | Entry] = [entry]
        try:
            call = confirm_call(entry.hold)
            given_up += [call]
            self._inside = True
            try:
                read_at = self._refresh(entry)
                try:
                    entry.release_confirmed(call, read_at)
                finally:
                    self._flush_releases()
            finally:
                self._inside = False
        except LocksidecarError:
            raise
        except BaseException:  # a signal handler raised: release the lock before this is raised
            self.session.given_up += given_up
            entry.given_up = True
            self.complete_given_up()
            raise
        return call

    async def confirmation(self, call: Confirm, timeouts: Timeouts) -> None:
        """Waits for the confirmation; raises Unconfirmed. If call is not DONE at the end, it is abandoned."""
        if call.state is CallState.NEW:
            await self.when_outside()
            self.complete_given_up()
            self._inside = True
            try:
                self.session.submit_confirm(call, self.clock())
            finally:
                self._inside = False
        try:
            if not call.done:
                try:
                    await self._wait(call, timeouts)
                except BaseException:
                    self.session.given_up += [call]
                    self.complete_given_up()
                    raise
            call.result()
        except LocksidecarError as e:
            raise call.unconfirmed_error(e, self.clock()) from e

    def _flush_releases(self) -> None:
        """Sends the releases, or connects to send them."""
        self._flush()
        if (
            self.session.unreleased_until
            and self.session.stage is Stage.DISCONNECTED
            and self._next_attempt is None
            and not self._handed_over
        ):
            self._connect()

    def _reconnect_if_expired(self, entry: Entry) -> bool:
        """Reconnects, and blocks the loop for that, if the deadline of the hold has passed without a connection.

        The loop may have been blocked while the sidecar was restarted and extended the deadline. If no sidecar
        listens, nothing blocks. Returns whether an attempt was made.
        """
        session, hold = self.session, entry.hold
        if session.stage is Stage.SERVING or session.failure is not None or hold.lost_reason or entry.released:
            return False
        if self.clock() < session.deadline(hold):
            return False
        self._connect()
        self.transport.finish_greeting()
        self._flush()
        return True

    def add_body(self, body: _GuardedBody, hold: Hold) -> None:
        self._bodies.setdefault(hold, []).append(body)

    def remove_body(self, body: _GuardedBody, hold: Hold) -> None:
        bodies = self._bodies.get(hold, [])
        if body in bodies:
            bodies.remove(body)
        if not bodies:
            self._bodies.pop(hold, None)

    # --- The end ---

    async def close(self) -> None:
        """Sends bye, and waits up to BYE_WAIT for its answer."""
        try:
            await self.when_outside()
            self._inside = True
            try:
                bye = self.session.close(self.clock())
            finally:
                self._inside = False
            if not bye.done:
                with contextlib.suppress(LocksidecarError):
                    await self._wait(bye, Timeouts(grace=BYE_WAIT, no_server=0.0, reconnect=0.0))
        finally:
            self.close_in_background()

    def close_in_background(self) -> None:
        """Hands the session over to a releaser: the loop may be closed before bye is answered."""
        if self._inside and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.close_in_background)
            return
        outer = self._inside
        self._inside = True
        try:
            self._hand_over()
        finally:
            self._inside = outer

    def _hand_over(self) -> None:
        self.session.close(self.clock())
        if self.loop.is_closed():  # no task waits in it, and no callback can be scheduled
            self._waiting.clear()
            self._bodies.clear()
        self.transport.verify()
        self.transport.flush()
        self._notify()
        self._handed_over = True
        if self._next_attempt is not None:
            self._next_attempt.cancel()
        sock, self._socket = self._socket, None
        if sock is not None and not self.loop.is_closed():
            self.loop.remove_reader(sock.fileno())
            self.loop.remove_writer(sock.fileno())
        if not self.transport.closed:
            SharedSession(self.transport, self.clock).close_in_background()

    def reset_if_forked(self) -> None:
        """Checks the process id, because not every fork runs the hooks of os.register_at_fork()."""
        if self.pid != _fork.process_id():
            self._after_fork_in_child()

    def _after_fork_in_child(self) -> None:
        self.pid = os.getpid()
        # The selector of the parent's loop is shared with this process: nothing may be removed from it here.
        self._socket = None
        self._writing = False
        self._next_attempt = None
        self._waiting.clear()
        self._bodies.clear()
        self.transport.close_inherited()


class _GuardedBody:
    """The body of an `async with`. It is cancelled when its lock is lost.

    ::

                 cancel_soon()               _cancel()
        RUNNING ───────────────► SCHEDULED ────────────► CANCELLED
           │                         │                       │
           └─────────────────────────┴──────── close() ──────┴────► closed

    RUNNING: _scheduled_cancel is None. CANCELLED: _cancelled is set. closed: _closed is set.
    """

    __slots__ = (
        "_cancelled",
        "_cancels_before",
        "_closed",
        "_entry",
        "_scheduled_cancel",
        "_shared",
        "_task",
        "_timer",
    )

    def __init__(self, shared: _AsyncSession, entry: Entry) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._shared = shared
        self._entry = entry
        self._cancelled = False
        self._closed = False
        self._scheduled_cancel: asyncio.Handle | None = None
        # Cancellations that were requested before the body began. close() must not take them for its own.
        self._cancels_before = 0
        if sys.version_info >= (3, 11):
            self._cancels_before = task.cancelling()
        shared.add_body(self, entry.hold)
        self._timer = self._start_timer()
        if entry.hold.lost_reason:  # between the grant and now
            self.cancel_soon()

    def _start_timer(self) -> asyncio.TimerHandle:
        shared = self._shared
        left = shared.session.deadline(self._entry.hold) - shared.clock()
        return shared.loop.call_later(max(left, 0) / 1e9, self._on_deadline)

    def _on_deadline(self) -> None:
        # The deadline may have been extended. The clock of the loop stops while the host is suspended, and a timer may
        # fire early, so the hold's deadline is compared with CLOCK_BOOTTIME.
        if not self._entry.released and not self._shared.lost(self._entry):
            self._timer = self._start_timer()

    def cancel_soon(self) -> None:
        # Not at once: the task itself may have found the loss, in check(). A task that cancels itself is cancelled at
        # its next await, which may come after the body.
        if self._scheduled_cancel is None and not self._entry.released:
            self._scheduled_cancel = self._shared.loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._cancelled or self._closed:  # an upper frame has called cancel_soon(), too
            return
        self._cancelled = True
        self._task.cancel(_LOST_MESSAGE)

    def close(self, exc: BaseException | None) -> bool:
        """Ends the guard. Returns whether exc is the cancellation that was made here, and no other one."""
        self._closed = True
        self._timer.cancel()
        if self._scheduled_cancel is not None:
            self._scheduled_cancel.cancel()
        self._shared.remove_body(self, self._entry.hold)
        if not self._cancelled:
            return False
        if sys.version_info >= (3, 11):
            return self._task.uncancel() <= self._cancels_before and isinstance(exc, asyncio.CancelledError)
        # Python 3.10 does not count cancellations; a later one replaces the message of the first.
        return isinstance(exc, asyncio.CancelledError) and exc.args == (_LOST_MESSAGE,)


_LOST_MESSAGE: Final = "locksidecar: the lock was lost"


class _Completed:
    """An awaitable without a wait. Unlike a coroutine, it may be dropped, and awaited again."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_COMPLETED: Final = _Completed()


class Held(_held.Held):
    """One acquired lock, from its acquire to its release. Nothing here waits, except `await release(confirm=True)`
    and `await downgrade()`.

    If the sidecar is restarted meanwhile, the lock stays held, with its token.
    """

    __slots__ = ("_body", "_client")

    _shared: _AsyncSession

    def __init__(self, client: Client, shared: _AsyncSession, entry: Entry, scoped: bool) -> None:
        super().__init__(shared, entry, scoped)
        self._client = client  # a client that is garbage collected ends its session
        self._body = _GuardedBody(shared, entry) if scoped else None

    @overload
    def release(self, *, confirm: Literal[False] = False, timeout: float | None = None) -> Awaitable[None]: ...

    @overload
    def release(self, *, confirm: Literal[True], timeout: float | None = None) -> Coroutine[Any, Any, None]: ...

    @overload
    def release(self, *, confirm: bool, timeout: float | None = None) -> Awaitable[None]: ...

    def release(self, *, confirm: bool = False, timeout: float | None = None) -> Awaitable[None]:
        """Releases the lock. Raises LockLost if it was lost before, NotHeld if it was released before.

        Without confirm this returns before Redis has executed the release. An `await` of the result is permitted, and
        ends at once. If the program then signals another host, that host may still find the lock taken.

        With confirm=True the call releases the lock, and returns an awaitable that ends after Redis has executed the
        release. Cancelling the `await` ends the wait and nothing else. Without a confirmation the `await` raises
        Unconfirmed; the lock is released in that case, too.

        timeout: how long to wait for the confirmation, in seconds; None: no limit; 0 or less: not at all. Without
        confirm it has no meaning. If the sidecar is restarted meanwhile, the client requests the confirmation from
        the new sidecar.

        If another owner on this host waits for the lock, the lock passes to that owner, and the release is
        confirmed at once.
        """
        if not confirm:
            self._shared.release(self._entry)
            return _COMPLETED
        return self._shared.confirmation(self._shared.release_confirmed(self._entry), Timeouts.for_confirm(timeout))

    async def downgrade(self) -> None:
        """Makes an exclusive hold of a read/write lock shared, with all its entries and its token.

        No other owner has the lock exclusive in between. It does nothing if the hold is shared. From the call on,
        `shared` is True, whatever this raises: then others may read. If the sidecar is restarted meanwhile, the new
        one downgrades the lock.

        Raises LockLost, NotHeld, BadRequest if it is no read/write lock, and Unavailable if the sidecar does not
        answer: then the lock may exclude others until its end, and the call may be repeated.
        """
        await self._shared.downgrade(self._entry)

    def _end_block(self, exc: BaseException | None, options: Options) -> Awaitable[None]:
        """Ends the `async with` block. The caller awaits the confirmation that this returns."""
        body, self._body = self._body, None
        cancelled_here = body is not None and body.close(exc)
        if self._entry.released:
            # Released in the body: a loss after that does not matter, unless it has cancelled the body.
            if cancelled_here:
                raise self._entry.loss_error(self._entry.hold.lost_reason) from exc
            return _COMPLETED
        confirm = options.waits_for_confirm(exc)
        try:
            released = self.release(confirm=confirm, timeout=options.confirm_timeout)
        except (LockLost, NotHeld) as e:
            if cancelled_here or exc is None:
                raise e from exc
            add_note_about(exc, e)
            return _COMPLETED
        return _confirmed_at_end(released, exc) if confirm else released


async def _confirmed_at_end(released: Awaitable[None], exc: BaseException | None) -> None:
    """Waits for the confirmation at the end of a block that ends with exc."""
    try:
        await released
    except Unconfirmed as e:
        if exc is None:
            raise
        add_note_about(exc, e)


class Permits(Held):
    """Permits of a semaphore, from their acquire to their release. Made by Semaphore.acquire().

    An `async with` block releases them at its end. If they are lost within it, the body is cancelled, and LockLost is
    raised at its end.
    """

    __slots__ = ("_options", "of", "permits")

    permits: Final[int]
    """How many are held."""
    of: Final[int]
    """How many the semaphore has for this hold: fewer than it was made with if a policy of the sidecar says so."""

    def __init__(self, client: Client, shared: _AsyncSession, entry: Entry, of: int, options: Options) -> None:
        super().__init__(client, shared, entry, scoped=False)
        self.permits = entry.hold.permits
        self.of = of
        self._options = options

    async def __aenter__(self) -> Permits:
        self._entry.require_unreleased()
        if self._body is None:
            self._body = _GuardedBody(self._shared, self._entry)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            released = self._end_block(exc, self._options)
        except BaseException:  # LockLost and NotHeld too; or a signal handler raised before the release
            self._shared.session.given_up += [self._entry]
            self._entry.given_up = True
            self._shared.complete_given_up()
            raise
        await released


class Lock:
    """A lock by name, used like an asyncio.Lock. Made by Client.lock().

    The task that acquired it holds it. It is not re-entrant: a task that waits for a lock that it holds itself gets
    Deadlock. Tasks may share the object; any of them may release it.

    If the lock is lost within `async with`, the body is cancelled, and LockLost is raised at its end.
    """

    __slots__ = ("__weakref__", "_client", "_handles", "_options", "name")

    name: Final[str]

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self.name = name
        self._client = client
        self._options = options
        self._handles: Handles[Held] = Handles(any_owner=not options.reentrant)

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Returns whether the lock was acquired in time.

        timeout: seconds to wait; None: the timeout that the lock was made with; -1: no limit.

        False means that another owner holds the lock. If it is not known whether the lock is free, because the sidecar
        does not answer or Redis cannot be reached, this raises Unavailable: 2 seconds after the start or 1 second after
        the timeout, whichever is later.
        """
        try:
            await self._acquire(self._options.for_acquire(blocking, timeout), scoped=False)
        except LockTimeout:
            return False
        return True

    @overload
    def release(self, *, confirm: Literal[False] = False, timeout: float | None = None) -> Awaitable[None]: ...

    @overload
    def release(self, *, confirm: Literal[True], timeout: float | None = None) -> Coroutine[Any, Any, None]: ...

    @overload
    def release(self, *, confirm: bool, timeout: float | None = None) -> Awaitable[None]: ...

    def release(self, *, confirm: bool = False, timeout: float | None = None) -> Awaitable[None]:
        """Releases the lock. Raises LockLost if it was lost before, NotHeld if it is not held.

        confirm, timeout: as in Held.release(): `await lock.release(confirm=True)`. The confirm and confirm_timeout that
        the lock was made with do not apply here.
        """
        held = self._handles.handle_to_release(_owners.of_task())
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held: it was released before, or never acquired here")
        try:
            if not held._scoped:
                self._handles.remove(held)
            return held.release(confirm=confirm, timeout=timeout)
        except LocksidecarError:
            raise
        except BaseException:  # a signal handler raised: release the lock before this is raised
            held._shared.session.given_up += [held._entry]
            held._entry.given_up = True
            held._shared.complete_given_up()
            raise

    def locked(self) -> bool:
        """Whether a task of this process holds the lock through this object.

        False does not mean that the lock is free: another object, process or host may hold it. Client.who() names the
        holder on any host, and Client.info() that on this host. Only an acquire with timeout 0 finds out whether the
        lock can be had.
        """
        return any(h.remaining > 0 for h in self._handles)

    @property
    def held(self) -> Held:
        """The Held of the current task; raises NotHeld if it does not hold the lock through this object."""
        held = self._handles.newest(_owners.of_task())
        if held is None:
            raise NotHeld(f"the lock {self.name!r} is not held by this task")
        return held

    @property
    def token(self) -> int:
        """The fencing token of `held`."""
        return self.held.token

    async def __aenter__(self) -> Held:
        return await self._acquire(self._options, scoped=True)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = self._handles.handles_of_block(_owners.of_task)
        if not ended:
            raise NotHeld(f"the lock {self.name!r} is not held by the task that leaves this async with block")
        try:
            for held in ended:
                self._handles.remove(held)
            released = ended[0]._end_block(exc, self._options)
            for held in ended[1:]:  # the first one was released in the body
                released = held._end_block(exc, self._options)
        except BaseException:  # LockLost and NotHeld too; or a signal handler raised before the release
            first, last = ended[0], ended[-1]  # there are at most two: see Handles.handles_of_block()
            first._scoped = False
            first._shared.session.given_up += [first._entry]
            first._entry.given_up = True
            last._shared.session.given_up += [last._entry]
            last._entry.given_up = True
            self._complete_release(ended)
            raise
        await released

    async def _acquire(self, options: Options, scoped: bool) -> Held:
        owner = _owners.of_task()
        held = await self._client._acquire(self.name, owner, options, scoped)
        try:
            self._handles.push(held)
        except BaseException:  # a signal handler raised: the caller does not get held
            held._scoped = False
            held._shared.session.given_up += [held._entry]
            held._entry.given_up = True
            self._complete_release([held])
            raise
        return held

    def _complete_release(self, ended: list[Held]) -> None:
        """Releases the entries that no caller can release any more. Those that are released already stay so."""
        for held in ended:
            held._shared.complete_given_up()
            self._handles.remove(held)

    def __repr__(self) -> str:
        return f"<locksidecar.aio.{type(self).__name__} {self.name!r}>"

    def __reduce__(self) -> tuple[type[Lock], tuple[Client, str, Options]]:
        return type(self), (self._client, self.name, self._options)


class RLock(Lock):
    """A re-entrant lock by name. Made by Client.rlock().

    The task that holds it may acquire it again. It must release it as often, and no other task may release it.
    """

    __slots__ = ()


class RWLock:
    """A read/write lock by name. Made by Client.rwlock().

    Over all hosts, one owner has it exclusive, or any number of owners share it. An owner is a task, as for an RLock,
    and may acquire the lock again in the mode that it has; with write(), also shared. A task that has it shared and
    asks for write() gets Deadlock. Tasks may share the object.

    The token of a shared hold is larger than that of each earlier exclusive hold. Store it with what was derived under
    the lock, and keep what has the larger token: then nothing that was derived before a write replaces what was derived
    after it.
    """

    __slots__ = ("__weakref__", "_client", "_options", "name")

    name: Final[str]

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self.name = name
        self._client = client
        self._options = options

    def read(self, *, timeout: float | None = None) -> RLock:
        """The lock as readers take it: `async with rw.read(timeout=2) as held:`. It excludes those of write() only.

        timeout: how long to wait; None: the timeout that the read/write lock was made with; -1: no limit; 0: try once.
        """
        return RLock(self._client, self.name, self._options.for_mode("shared", timeout))

    def write(self, *, timeout: float | None = None, keep: float = 0.0) -> RLock:
        """The lock as a writer takes it: `async with rw.write() as held:`. It excludes all others.

        timeout: as for read(). keep: as for Client.lock().
        """
        return RLock(self._client, self.name, self._options.for_mode("exclusive", timeout, keep))

    def synchronized(
        self, mode: Literal["read", "write"]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Makes a decorator: the coroutine function runs while its task has the lock, by read() or write().

        As Client.synchronized(), with reentrant.
        """
        make = self.write if is_write(mode) else self.read
        return within_async(lambda *args, **kwargs: make())

    def __repr__(self) -> str:
        return f"<locksidecar.aio.RWLock {self.name!r}>"

    def __reduce__(self) -> tuple[type[RWLock], tuple[Client, str, Options]]:
        return type(self), (self._client, self.name, self._options)


class Semaphore:
    """A semaphore by name. Made by Client.semaphore().

    At most so many permits as it has are held at one time, by all clients on all hosts together. Nothing stores that
    number: it is that of each request. So a program with another number takes no permit away.

    Each acquire is a hold of its own, without an owner. A task that waits for permits while it holds some may wait for
    itself, without end. Tasks may share the object.
    """

    __slots__ = ("__weakref__", "_client", "_options", "name", "permits")

    name: Final[str]
    permits: Final[int]
    """How many there are."""

    def __init__(self, client: Client, name: str, permits: int, options: Options) -> None:
        self.name = name
        self.permits = protocol.check_positive("permits", permits, protocol.MAX_PERMITS)
        self._client = client
        self._options = options

    @overload
    def acquire(
        self, permits: int = 1, *, blocking: Literal[True] = True, timeout: float | None = None
    ) -> _Acquiring: ...

    @overload
    def acquire(
        self, permits: int = 1, *, blocking: bool, timeout: float | None = None
    ) -> Coroutine[Any, Any, Permits | None]: ...

    def acquire(
        self, permits: int = 1, *, blocking: bool = True, timeout: float | None = None
    ) -> _Acquiring | Coroutine[Any, Any, Permits | None]:
        """Acquires so many permits at one time: `async with semaphore.acquire(2):`, or `await semaphore.acquire(2)`.

        Raises LockTimeout if they are not free in time. With blocking=False it does not wait, and the result is None
        then.

        timeout: seconds to wait; None: the timeout that the semaphore was made with; -1: no limit; 0: try once.

        Requests of all hosts are granted in their order: one that does not fit yet keeps those after it waiting.
        Otherwise as Lock.acquire().
        """
        protocol.check_positive("permits", permits, self.permits)
        options = self._options.for_acquire(blocking, timeout)
        return _Entering(self._acquire(options, permits)) if blocking else self._try_acquire(options, permits)

    async def _acquire(self, options: Options, permits: int) -> Permits:
        # No cast(): a signal handler that raises in it would leave the permits held.
        return await self._client._acquire(self.name, 0, options, False, permits, self.permits)  # type: ignore[return-value]

    async def _try_acquire(self, options: Options, permits: int) -> Permits | None:
        try:
            return await self._acquire(options, permits)
        except LockTimeout:
            return None

    def synchronized(
        self, permits: int = 1
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Makes a decorator: the coroutine function runs while so many permits are held. It is cancelled at a loss.

        As Client.synchronized(). Under re-entry, each call acquires permits of its own.
        """
        protocol.check_positive("permits", permits, self.permits)
        return within_async(lambda *args, **kwargs: self.acquire(permits))

    def __repr__(self) -> str:
        return f"<locksidecar.aio.Semaphore {self.name!r} permits={self.permits}>"

    def __reduce__(self) -> tuple[type[Semaphore], tuple[Client, str, int, Options]]:
        return type(self), (self._client, self.name, self.permits, self._options)


class Client:
    """One process's session with the sidecar of its host, for the tasks of one event loop.

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
        self._shared: _AsyncSession | None = None
        self._pid = os.getpid()
        self.path: str = socket_path(path)
        self.name_prefix: str = protocol.check_prefix(name_prefix)
        self._clock: Callable[[], int] = clock_of(self.path)
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
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
    ) -> Lock:
        """Makes a lock that is used like asyncio.Lock; this does not acquire it. Durations are in seconds.

        timeout: how long to wait for the lock; None or -1: no limit; 0: try once.
        lease: how long the lock is held at most, without renewal; None: the sidecar renews it until the release.
        max_hold: how long the lock is held at most, even if it is renewed; None: no limit.
        crash_delay: how much longer the lock stays held when this process dies.
        keep: how long the lock stays held from the acquire on, up to a day: also after the release, and if this
        process, the sidecar or the host dies. Of all hosts that start a job at one time with timeout=0, one runs it.
        confirm: whether an `async with` block waits until Redis has executed the release, like `await
        held.release(confirm=True)`, and raises Unconfirmed without a confirmation. If the body raises an exception,
        that exception is raised instead, with a note (Python 3.11). A block that is cancelled, or that
        KeyboardInterrupt or GeneratorExit leaves, releases without waiting.
        confirm_timeout: how long the block waits for the confirmation; None: no limit.
        fair: whether such acquires are granted over all hosts in the order in which they reach Redis. Without it a lock
        stays on one host for several grants, which is faster. It has no effect with timeout 0.
        """
        options = make_options(timeout, lease, max_hold, crash_delay, False, confirm, confirm_timeout, fair, keep)
        return Lock(self, self._whole(name), options)

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
    ) -> RLock:
        """Makes a re-entrant lock: the task that holds it may acquire it again. Otherwise as lock().

        The end of an inner block is confirmed at once: the lock stays held.
        """
        options = make_options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout, fair, keep)
        return RLock(self, self._whole(name), options)

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
    ) -> RWLock:
        """Makes a read/write lock; this acquires nothing. Readers share it, and a writer has it alone, over all hosts.

        The arguments are those of lock(), for the hold of each read() and write(). A name is that of a lock, a
        read/write lock or a semaphore, and of one of them at a time.
        """
        options = make_options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout, fair, 0.0)
        return RWLock(self, self._whole(name), options)

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
    ) -> Semaphore:
        """Makes a semaphore; this acquires nothing. Of all hosts, at most so many permits are held at one time.

        permits: how many there are, up to 65535. The other arguments are those of lock(), for the hold of each acquire.

        The fencing token of each hold is larger than those before it, but holds exist at one time: it is no fence. A
        name is that of a lock, a read/write lock or a semaphore, and of one of them at a time.
        """
        # reentrant=True leaves the field out of the request, which does not have it.
        options = make_options(timeout, lease, max_hold, crash_delay, True, confirm, confirm_timeout, False, 0.0)
        return Semaphore(self, self._whole(name), permits, options)

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
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Makes a decorator: the coroutine function runs while its task holds the lock. It is cancelled at a loss.

        name: the name of the lock, or a function that returns it; it gets the arguments of each call.
        reentrant: the lock is an rlock(), so the function may call itself.

        The other arguments are those of lock(). The call raises LockTimeout and LockLost. A function that needs the
        fencing token uses an async with block instead.
        """
        make = self.rlock if reentrant else self.lock
        make_lock = functools.partial(
            make, timeout=timeout, lease=lease, max_hold=max_hold, crash_delay=crash_delay, keep=keep, fair=fair
        )
        make_lock(name if isinstance(name, str) else "x")  # raises if an argument is wrong
        return within_async(lambda *args, **kwargs: make_lock(name if isinstance(name, str) else name(*args, **kwargs)))

    async def info(self, name: str, *, host: str | None = None) -> LockInfo | None:
        """Returns what the sidecar knows about the lock; None: no owner on this host holds it or waits for it.

        None does not mean that the lock is free: the sidecar does not ask Redis, and an owner on another host may hold
        it. The sidecar knows that ("remote") while an owner on this host waits for the lock, and for a moment after.
        who() reads Redis.

        host: asks the sidecar of another host, by the name of the host or the uuid of the sidecar. Raises Unavailable
        if it does not answer within half a second.
        """
        return (await self._call(info_call(self._whole(name), host))).lock

    async def list(self, *, host: str | None = None) -> tuple[LockInfo, ...]:
        """Returns all locks that the sidecar knows, or the sidecar of another host, as in info()."""
        locks: dict[str, LockInfo] = {}
        after = 0
        while True:
            page = await self._call(list_call(after, host))
            locks.update((row.name, row) for row in page.locks)
            if not page.next:
                return tuple(locks.values())
            after = page.next

    async def events(self, after: int = 0, *, wait: bool = False) -> EventPage:
        """Returns what happened to locks of this host.

        after is 0 for the oldest event that the sidecar has, or the next of an earlier page. With wait, the call
        returns when there is an event.
        """
        return await self._call(events_call(after, wait), Timeouts(math.inf if wait else 0.0))

    async def who(self, name: str) -> Ownership:
        """Returns who has the lock and who waits for it, on all hosts.

        The sidecar reads Redis once and asks the sidecar of the owner. That takes a second at most.
        """
        return await self._call(who_call(self._whole(name)))

    async def status(self, *, host: str | None = None) -> Status:
        """Returns how the sidecar and its locks are, or the sidecar of another host, as in info().

        The times of another host are of its own clock.
        """
        return await self._call(status_call(host))

    async def hosts(self) -> tuple[HostInfo, ...]:
        """Returns the sidecars that use the same Redis with the same key prefix, this one among them."""
        found: dict[str, HostInfo] = {}
        after = ""
        while True:
            page = await self._call(hosts_call(after))
            found.update((row.sidecar, row) for row in page.hosts)
            if not page.more or not page.hosts:
                return tuple(found.values())
            after = page.hosts[-1].sidecar

    async def force_release(self, name: str, *, hold: int | None = None, host: str | None = None) -> None:
        """Ends the hold of any owner on this host, of a semaphore all holds. Raises NotHeld if there is none.

        hold: the number of a hold, as in LockInfo.holders: ends this one alone.
        host: asks the sidecar of another host, as in info(), for root and the user of this sidecar, and where the other
        one permits it.
        """
        check_forced(name, hold, await self._call(force_release_call(self._whole(name), host, hold)))

    async def force_release_orphaned(self, name: str, *, sidecar: str | None = None) -> OrphanedLock:
        """Frees a lock whose sidecar is gone for good, because its host died, or all permits of such a sidecar.

        Root and the user of this sidecar may do it.
        sidecar: the uuid of the one that is gone, as in LockOwner; needed for a semaphore of which several other hosts
        have permits.

        Raises NotHeld if no client has the lock, and Denied if it is not orphaned: its sidecar may be alive, or is this
        one, or the lock is that of a foreign client. A sidecar that is only cut off from Redis cannot be told from one
        that is gone: its processes then rely on the lock until their deadline, within ttl_ms of the result. Other calls
        of this client wait for the answer, for a second and a half at most.
        """
        return check_freed(name, sidecar, await self._call(force_release_orphaned_call(self._whole(name), sidecar)))

    async def metrics(self) -> str:
        """Returns what the sidecar counts, in the text format of Prometheus."""
        text = ""
        after = 0
        while True:
            page = await self._call(metrics_call(after))
            text += page.text
            if not page.next:
                return text
            after = page.next

    async def ping(self) -> str:
        """Returns the state of the sidecar's Redis: "ok", or a sentence that says what is wrong."""
        return (await self._call(ping_call())).redis

    async def aclose(self) -> None:
        """Ends the session. Locks that are held are lost, and calls that wait fail."""
        self._closed = True
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()

    async def connect(self) -> None:
        """Connects, if there is no connection; raises if no sidecar listens."""
        await self._call(connect_call())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        shared = self._shared
        if shared is None or shared.pid != os.getpid() or sys.is_finalizing():
            return
        if shared.transport.sock is None and not shared.session.can_be_resumed:  # else a sidecar keeps its locks
            return
        try:
            warnings.warn(
                f"unclosed {self!r}: call aclose(), or use async with", ResourceWarning, stacklevel=1, source=self
            )
        finally:  # a warning may be an error
            self._end_in_background()

    def _end_in_background(self) -> None:
        """Ends the session without waiting. Any thread may call this."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if shared.loop.is_closed():
            shared.close_in_background()
        else:
            shared.loop.call_soon_threadsafe(shared.close_in_background)

    def __repr__(self) -> str:
        return f"<locksidecar.aio.Client {self.path}>"

    def __reduce__(self) -> tuple[Callable[..., Client], tuple[str, ...]]:
        # A pickle of a client without a prefix can be loaded by version 0.1.
        return _of_this_process, (self.path, self.name_prefix) if self.name_prefix else (self.path,)

    def _whole(self, name: str) -> str:
        """The name of a lock with the prefix."""
        if self.name_prefix and isinstance(name, str):
            name = self.name_prefix + name
        return protocol.check_name(name)

    def _after_fork_in_child(self) -> None:
        self._pid = os.getpid()
        self._shared = None
        self._loop = None

    async def _acquire(
        self, name: str, owner: int, options: Options, scoped: bool, permits: int = 0, of: int = 0
    ) -> Held:
        """permits, of: 0: of a lock. Otherwise this returns Permits."""
        if self._shared is not None:
            await self._shared.when_outside()
        shared = self._usable_session()
        call = acquire_call(name, owner, options, self._clock(), permits, of)
        given_up: list[Call[Any] | Entry] = [call]
        span = _tracing.start(name, options.timeout, permits)
        try:
            await shared.execute(call, Timeouts.for_acquire(options.timeout))
        except BaseException as e:
            if span is not None:
                _tracing.failed(span, e)
            raise
        try:
            grant = call.result()
            assert call.hold is not None
            entry = Entry(shared.session, call.hold)
            given_up = [entry]
            if permits:
                held: Held = Permits(self, shared, entry, grant.of or of, options)
            else:
                held = Held(self, shared, entry, scoped)
            if span is not None:
                _tracing.granted(span, grant.token)
            return held
        except BaseException as e:
            shared.session.given_up += given_up
            shared.complete_given_up()
            if span is not None:
                _tracing.failed(span, e)
            raise

    async def _call(self, call: Call[T], timeouts: Timeouts | None = None) -> T:
        if self._shared is not None:
            await self._shared.when_outside()
        await self._usable_session().execute(call, timeouts or Timeouts())
        return call.result()

    def _usable_session(self) -> _AsyncSession:
        loop = _running_loop()
        if self._pid != _fork.process_id():  # not every fork runs the hooks of os.register_at_fork()
            if self._shared is not None:
                self._shared.reset_if_forked()
            self._after_fork_in_child()
        if self._loop is not loop:
            self._bind_to_loop(loop)
        shared = self._shared
        if shared is None or not shared.check_usable():
            if self._closed:
                raise ClientClosed("the client was closed; make a new one with locksidecar.aconnect()")
            made = _AsyncSession(Transport(Session(self.path), self._clock), self._clock)
            if self._shared is not None and self._shared is not shared:  # an upper frame has made one
                return self._shared
            self._shared = shared = made
        return shared

    def _bind_to_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this client belongs to another event loop: make one client for each loop")
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close_in_background()
        self._loop = loop


_clients: Final[dict[tuple[str, str], Client]] = {}


def _of_this_process(path: str, name_prefix: str = "") -> Client:
    """Returns the client that all unpickled locks and clients with this path and prefix share.

    Pickles refer to this function by name.
    """
    return _clients.setdefault((path, name_prefix), Client(path, name_prefix=name_prefix))


class _Entering(Coroutine[Any, Any, M], Generic[M]):
    """A coroutine whose result is an asynchronous context manager, and which is one itself."""

    __slots__ = ("_coroutine", "_result")

    def __init__(self, coroutine: Coroutine[Any, Any, M]) -> None:
        self._coroutine = coroutine
        self._result: M | None = None

    def __await__(self) -> Generator[Any, Any, M]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> M:
        self._result = await self._coroutine
        try:
            await self._result.__aenter__()
        except BaseException as e:  # a signal handler raised: the block does not begin
            await self._result.__aexit__(type(e), e, e.__traceback__)
            raise
        return self._result

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._result is not None
        await self._result.__aexit__(exc_type, exc, traceback)


_Connecting: TypeAlias = _Entering[Client]
_Acquiring: TypeAlias = _Entering[Permits]


def connect(path: str | os.PathLike[str] = "", *, name_prefix: str = "") -> _Connecting:
    """Returns a connected client: `await connect()`, or `async with connect() as client`.

    path, name_prefix: as in Client.
    """
    return _Entering(_connected(path, name_prefix))


async def _connected(path: str | os.PathLike[str], name_prefix: str) -> Client:
    client = Client(path, name_prefix=name_prefix)
    try:
        await client.connect()
    except BaseException:
        client._end_in_background()
        raise
    return client
