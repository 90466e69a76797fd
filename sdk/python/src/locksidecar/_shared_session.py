"""The line to the sidecar that the threads of a process share.

No thread belongs to it. Of those that wait for an answer one, the leader, waits on the socket and hands the
others theirs; when it has its own, it passes the role on. What no thread waits for (a lock was lost) is read by
the next call, or by check(). The same goes for the end of the connection: the leader, or else the thread that
notices it, connects again.

A background thread, the rescuer, runs only while something was given up that the sidecar may not have read, or may
have granted all the same: a release while there was no connection, and an acquire whose caller has left. It ends
when that is settled.

A handler of a signal may raise in the main thread, in every function here, and in what completes the interrupted
function as well. So the first thing that an except clause does is to start a background thread, which no handler
interrupts, and which completes it. That start is one call of a function in C, so no handler runs before it is done;
contextlib.suppress() around it would be a function in Python.
The interrupted thread does the same then, in case background threads cannot run. Both may complete it: what is done
twice has no effect.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from . import _fork
from ._calls import Call, Confirm, confirm_call, ping_call
from ._core import Entry, Stage
from ._errors import LocksidecarError, Unavailable
from ._transport import ANSWER_GRACE, BYE_WAIT, NO_WAIT, Timeouts, Transport, wait_ready

T = TypeVar("T")

# How often something short is tried that handlers of signals interrupt.
INTERRUPT_RETRIES: Final = (1, 2, 3, 4, 5)


# Between two attempts of the rescuer, seconds.
_RELEASER_PAUSE: Final = 0.1


class _CallWaiter:
    """A thread that waits until a call is done."""

    __slots__ = ("call", "registered", "wakeup")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.registered = False  # others hand it its answer; it has to resign when it leaves
        self.wakeup = threading.Lock()  # released to wake the thread
        self.wakeup.acquire()


class SharedSession:
    """One session, shared by threads.

    mutex guards everything else, but is never held while waiting. A thread that holds it may connect and
    read from the socket; only the leader waits for it: the first to wait, then the one that it names when it leaves.
    It is woken by the bell when its answer was read by another thread, when there is something left to write,
    when the connection is another one, or when the session failed.

    Several threads may wait for one call: the thread that closes the client and the rescuer both wait for bye. So
    the leader is a waiter, not a call.
    """

    def __init__(self, transport: Transport, clock: Callable[[], int]) -> None:
        self.mutex = threading.Lock()
        self.transport = transport
        self.session = transport.session
        self.pid = os.getpid()
        self._clock = clock
        self._leader: _CallWaiter | None = None
        self._polling = False  # the leader is about to wait, or waits
        self._waiting: dict[Call[Any], list[_CallWaiter]] = {}  # the leader too
        self._seen_disconnected = False  # those who wait have been woken for it
        self._next_attempt = 0.0  # by time.monotonic()
        self._waker = _Waker()
        self._releaser_running = False  # the rescuer runs, or is about to
        _fork.register(self)

    # --- Calls ---

    def execute(self, call: Call[Any], timeouts: Timeouts) -> None:
        """Sends call and waits until it is done, whatever comes of it.

        If this raises, call is abandoned, unless it is done.
        """
        self.reset_if_forked()
        try:
            with self.mutex:
                self.session.submit(call, self._clock())
                self._flush()
            self._wait_for(call, timeouts)
        except LocksidecarError:
            self.abandon(call)
            raise
        except BaseException:
            try:  # noqa: SIM105
                _thread.start_new_thread(self._complete_interrupted, (call,))
            except RuntimeError:  # no thread can be started
                pass
            self._complete_interrupted(call)
            raise

    def abandon(self, call: Call[Any]) -> None:
        """The caller has left. What call is granted, now or later, is given back.

        This does not depend on the next use of the client: the rescuer reads the answer.
        """
        try:
            self._complete_interrupted(call)
        except BaseException:
            try:  # noqa: SIM105
                _thread.start_new_thread(self._complete_interrupted, (call,))
            except RuntimeError:  # no thread can be started
                pass
            raise

    def _complete_interrupted(self, call: Call[Any] | None = None) -> None:
        """Completes what a handler of a signal interrupted, and abandons call."""
        with self.mutex:
            if call is not None:
                self.session.abandon(call, self._clock())
            self._process_arrived()
            self._flush()
            unreleased = self._has_unreleased() and self.session.failure is None  # else close() sees to it
        if unreleased:
            self._start_releaser()

    def _wait_for(self, call: Call[Any], timeouts: Timeouts) -> None:
        waiter = _CallWaiter(call)
        transport = self.transport
        try:
            while True:
                backoff = math.inf
                with self.mutex:
                    if transport.sock is None and self._leader in (None, waiter):
                        backoff = self._connect_if_due()
                    if self.session.has_work():
                        self._receive()
                    if call.done:
                        return
                    if not waiter.registered:
                        waiter.registered = True
                        self._waiting.setdefault(call, []).append(waiter)
                    if self._leader is None:
                        self._leader = waiter
                    leading = self._leader is waiter
                    if leading:
                        self._polling = True
                    left = transport.expires_at(timeouts) - time.monotonic()
                if left <= 0:
                    raise transport.timeout_error(call)
                if leading:
                    self._poll_as_leader(waiter, min(left, backoff))
                else:
                    waiter.wakeup.acquire(timeout=-1 if left == math.inf else min(left, threading.TIMEOUT_MAX))
                if not waiter.registered:  # the call is done, and no part is left for this thread
                    return
        finally:
            # Others would wait without end for a leader that has left without a successor.
            if waiter.registered:
                try:
                    self._stop_waiting(waiter)
                except BaseException:
                    try:  # noqa: SIM105
                        _thread.start_new_thread(self._stop_waiting, (waiter,))
                    except RuntimeError:  # no thread can be started
                        pass
                    raise

    def _stop_waiting(self, waiter: _CallWaiter) -> None:
        with self.mutex:
            if waiter.registered:
                self._hand_over(waiter)

    def _poll_as_leader(self, waiter: _CallWaiter, seconds: float) -> None:
        sock = self.transport.sock
        if sock is None:
            wait_ready([self._waker], [], min(seconds, 3600.0))
        else:
            # A thread that leaves something unsent, or connects, after this look rings the bell.
            wait_ready([self._waker, sock], [sock] if self.session.unsent else [], min(seconds, 3600.0))
        with self.mutex:
            self._polling = False
            self._waker.drain()
            self._receive()
            self.transport.close_ended_sockets()
            if waiter.call.done:
                self._hand_over(waiter)

    # --- With the mutex held ---

    def _process_arrived(self) -> None:
        """Processes what has arrived, and continues what was interrupted."""
        if self.session.unsent or self.transport.readable():
            self._receive()

    def _receive(self) -> None:
        try:
            self.transport.receive()
        finally:
            self._notify()
        if self.session.unsent:  # the release of a grant that came too late, or what a greeting goes on with
            self._flush()

    def _flush(self) -> None:
        try:
            if not self.transport.flush():
                self._wake_leader()
        finally:
            self._notify()

    def _connect_if_due(self) -> float:
        """Connects if it is time to; tells how long to wait for the next time."""
        now = time.monotonic()
        if now < self._next_attempt:
            return self._next_attempt - now
        pause = self.transport.next_backoff()
        self._next_attempt = now + pause
        return math.inf if self._connect() else pause

    def _connect(self) -> bool:
        try:
            connected = self.transport.connect()
        finally:
            self._notify()
        if connected:
            self._wake_leader()  # it waits without the new socket
        return connected

    def _notify(self) -> None:
        """Wakes those whose calls are done. If it is interrupted, the next one goes on with it."""
        session = self.session
        if session.lost_holds:
            session.lost_holds.clear()  # the callers that hold them look
        if session.failure is not None:
            session.fail_pending()
            self._close_if_unneeded()
        if self._seen_disconnected is not (self.transport.sock is None):
            self._on_connection_changed()
        while session.done_calls:
            for waiter in tuple(self._waiting.get(session.done_calls[-1], ())):
                self._wake(waiter)
            session.done_calls.pop()

    def _wake(self, waiter: _CallWaiter) -> None:
        """Its call is done."""
        if waiter is self._leader:
            self._wake_leader()
            return
        _wake_thread(waiter.wakeup)
        self._unregister(waiter)  # so that its thread, once awake, does not need the mutex

    def _unregister(self, waiter: _CallWaiter) -> None:
        waiters = self._waiting.get(waiter.call, [])
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiting.pop(waiter.call, None)
        waiter.registered = False

    def _hand_over(self, waiter: _CallWaiter) -> None:
        """The thread of waiter leaves, and passes on the lead. If it is interrupted it is called again."""
        if self._leader is waiter:
            next_leader = self._next_leader(waiter)
            if next_leader is not None:
                _wake_thread(next_leader.wakeup)  # before it leads, for only the bell wakes the leader
            # Commit:
            self._leader = next_leader
            self._polling = False
        self._notify()
        self._unregister(waiter)

    def _next_leader(self, leader: _CallWaiter) -> _CallWaiter | None:
        for call, waiters in self._waiting.items():
            for waiter in waiters:
                if waiter is not leader and not call.done:
                    return waiter
        return None

    def _on_connection_changed(self) -> None:
        """There is a connection, or there is none any more: how long each of those who wait will do so is
        another question now, and one of them has to connect."""
        adrift = self.transport.sock is None
        if adrift:
            if self._leader is None:
                self.transport.close_ended_sockets()
            self._wake_leader()
            for waiters in list(self._waiting.values()):
                for waiter in waiters:
                    _wake_thread(waiter.wakeup)
        self._seen_disconnected = adrift

    def _wake_leader(self) -> None:
        if self._polling:
            self._waker.wake()
            self._polling = False  # not before: an interrupt in between would leave the leader asleep

    def _close_if_unneeded(self) -> None:
        # Not under the leader's poll: the number of a closed file may be another file's a moment later.
        if self._leader is None and self.transport.close_if_unneeded():
            self._waker.close()

    def _has_unreleased(self) -> bool:
        """Whether something was given up that the sidecar may not read unless a thread sees to it, or may have
        granted all the same."""
        session = self.session
        return (
            bool(session.unreleased_until or session.unsent or session.unanswered_cancels)
            and session.stage is not Stage.ENDED
        )

    # --- Holds ---

    def check_usable(self) -> bool:
        self.reset_if_forked()
        try:
            with self.mutex:
                self._process_arrived()
                return self.session.failure is None
        except BaseException:
            try:  # noqa: SIM105
                _thread.start_new_thread(self._complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            self._complete_interrupted()
            raise

    def check(self, entry: Entry) -> None:
        self._read_state(entry.check, entry)

    def lost(self, entry: Entry) -> str:
        return self._read_state(entry.lost, entry)

    def remaining(self, entry: Entry) -> int:
        return self._read_state(entry.remaining, entry)

    def deadline(self, entry: Entry) -> int:
        return self._read_state(entry.deadline, entry)

    def _read_state(self, at: Callable[[int], T], entry: Entry) -> T:
        """What is known now. A connection that has ended is made good for first, if a sidecar listens: the
        deadlines that it told may have been moved on."""
        self.reset_if_forked()
        reconnected = False
        try:
            while True:
                with self.mutex:
                    read_at = self._clock()
                    self._process_arrived()
                    if reconnected or self._is_connected_or_failed():
                        known = at(read_at)
                        # The process may have been stopped since it read. Then a later deadline may have arrived.
                        if entry.has_ended() or self._clock() < self.session.deadline(entry.hold):
                            return known
                        continue
                self._reconnect_once()
                reconnected = True
        except LocksidecarError:
            raise
        except BaseException:
            try:  # noqa: SIM105
                _thread.start_new_thread(self._complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            self._complete_interrupted()
            raise

    def _is_connected_or_failed(self) -> bool:
        return self.session.stage is Stage.SERVING or self.session.failure is not None

    def _reconnect_once(self) -> None:
        """Tries once to get back in touch."""
        with self.mutex:
            connected = self._connect()
            unreleased = self._has_unreleased()
        if connected:
            with contextlib.suppress(LocksidecarError):
                self.execute(ping_call(), NO_WAIT)
        elif unreleased:
            self._start_releaser()

    def release(self, entry: Entry, confirm: Timeouts | None = None) -> None:
        """confirm: the patience of the wait for the confirmation; None: none is requested."""
        call: Confirm | None = None
        try:
            self.reset_if_forked()
            if confirm is not None:
                call = confirm_call(entry.hold)
            error = self._release_entry(entry, call)
        except BaseException:
            # A lock that is not released would be renewed without end.
            try:  # noqa: SIM105
                _thread.start_new_thread(self._complete_release, (entry, call))
            except RuntimeError:  # no thread can be started
                pass
            self._complete_release(entry, call)
            raise
        if error is not None:
            raise error
        if call is not None and confirm is not None:
            self._wait_for_confirmation(call, confirm)

    def _release_entry(self, entry: Entry, call: Confirm | None) -> LocksidecarError | None:
        """call: requests the confirmation; None: none is requested."""
        with self.mutex:
            read_at = self._clock()
            self._process_arrived()
            reconnect = not (entry.released or self._is_connected_or_failed())
            if not reconnect:
                error = self._release_and_flush(entry, read_at, call)
        if reconnect:
            self._reconnect_once()
            with self.mutex:
                read_at = self._clock()
                self._process_arrived()
                error = self._release_and_flush(entry, read_at, call)
        if (self.session.unreleased_until or self.session.unsent) and self._has_unreleased():
            self._start_releaser()
        return error

    def _release_and_flush(self, entry: Entry, read_at: int, call: Confirm | None) -> LocksidecarError | None:
        try:
            if call is None:
                entry.release(read_at)
            else:
                entry.release_confirmed(call, read_at)
        except LocksidecarError as e:
            return e
        finally:
            self._flush()
        return None

    def _complete_release(self, entry: Entry, call: Confirm | None) -> None:
        """Of a release that was interrupted: no thread waits for the confirmation."""
        with self.mutex:
            self._process_arrived()
            if not entry.released:
                self._release_and_flush(entry, self._clock(), None)
        self._complete_interrupted(call)

    def _wait_for_confirmation(self, call: Confirm, timeouts: Timeouts) -> None:
        """Waits for the confirmation; raises Unconfirmed."""
        try:
            if not call.done:
                try:
                    self._wait_for(call, timeouts)
                except BaseException:
                    self.abandon(call)
                    raise
            call.result()
        except LocksidecarError as e:
            raise call.unconfirmed_error(e, self._clock()) from e

    # --- The end ---

    def close(self) -> None:
        """Says bye, and waits for the answer a moment."""
        self.reset_if_forked()
        try:
            with self.mutex:
                bye = self.session.close(self._clock())
                self._flush()
                if not bye.done:
                    self._connect()
            if not bye.done:
                with contextlib.suppress(LocksidecarError):
                    self._wait_for(bye, Timeouts(grace=BYE_WAIT, no_server=0.0, reconnect=0.0))
        finally:
            self.close_in_background()

    def close_in_background(self) -> None:
        """Leaves a closed session, or has its bye said in the background, if that still matters."""
        with self.mutex:
            unreleased = self._has_unreleased()
            if not unreleased:
                self.session.finish()
                self._notify()
        if unreleased:
            self._start_releaser()

    def _start_releaser(self) -> None:
        """Starts the rescuer, if it does not run."""
        with self.mutex:
            if self._releaser_running:
                return
            self._releaser_running = True
            try:
                # Not threading.Thread, whose start() cannot be interrupted without harm. Looked up here, because
                # monkey patching may have replaced it.
                _thread.start_new_thread(self._releaser_thread, ())
            except RuntimeError:  # the interpreter is about to end, and everything with it
                self._releaser_running = False

    def _releaser_thread(self) -> None:
        try:
            self._run_releaser()
        except BaseException:
            self._releaser_running = False
            raise

    def _run_releaser(self) -> None:
        """What the rescuer does: sees to it that the sidecar, or its successor, reads what was given up."""
        session = self.session
        done = False
        while not done:
            timed_out = False
            # By the end of it nothing is left in Redis of what was given up.
            left = max((session.unreleased_until - self._clock()) / 1e9, ANSWER_GRACE)
            timeouts = Timeouts(left, no_server=left, reconnect=left)
            try:
                if (call := self._outstanding_request()) is not None:
                    self._wait_for(call, timeouts)
                else:
                    self.execute(ping_call(), timeouts)  # its answer tells that all before it was read
            except LocksidecarError:
                timed_out = True
            with self.mutex:
                # Under the mutex, so that a thread which owes anything later finds no rescuer. What was owed since
                # the attempt began, or is by a thread that closed the client meanwhile, is worth another one.
                over = timed_out and self._clock() >= session.unreleased_until and not session.unanswered_cancels
                done = not self._has_unreleased() or over
                if done:
                    self._releaser_running = False
                    if session.failure is not None:
                        session.finish()
                        self._notify()
            if timed_out and not done:
                time.sleep(_RELEASER_PAUSE)

    def _outstanding_request(self) -> Call[Any] | None:
        """The request whose answer ends the rescuer's work, if it was sent: bye, or an abandoned acquire."""
        with self.mutex:
            if self.session.failure is None:
                return next(iter(self.session.unanswered_cancels.values()), None)
            bye = self.session.close(self._clock())
            self._flush()
            return bye

    # --- Processes ---

    def reset_if_forked(self) -> None:
        """A forked child has nothing of its parent's. Not every fork runs the hooks of os.register_at_fork()."""
        if self.pid != os.getpid():
            self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        self.pid = os.getpid()
        self.mutex = threading.Lock()
        self._leader = None
        self._polling = False
        self._waiting.clear()
        self._releaser_running = False
        self.transport.close_inherited()
        self._waker.close()


def _wake_thread(wakeup: threading.Lock) -> None:
    """Lets its thread go on. Only a thread that holds the line's mutex gives one, so there is at most one to take."""
    if wakeup.locked():
        wakeup.release()


class _Waker:
    """Wakes the thread that polls."""

    _fd = -1

    def __init__(self) -> None:
        if sys.platform == "linux":
            try:
                self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            except OSError as e:
                raise Unavailable(
                    f"cannot connect to the sidecar: {e.strerror}. Raise the limit of open files (ulimit -n)"
                ) from e
        self._woken = False

    def fileno(self) -> int:
        return self._fd

    def wake(self) -> None:
        self._woken = True
        if sys.platform == "linux":
            os.eventfd_write(self._fd, 1)

    def drain(self) -> None:
        if self._woken and sys.platform == "linux":
            self._woken = False
            with contextlib.suppress(BlockingIOError):  # the thread that rang was interrupted
                os.eventfd_read(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close
