"""A session that the threads of a process share.

It has no thread of its own. Of the threads that wait for an answer, one is the leader: it polls the socket, processes
what arrives, and wakes the thread whose answer came. When the leader has its own answer, another waiting thread becomes
the leader. An event that no thread waits for, such as the loss of a lock, is read by the next call or check(). The
leader also reconnects after a disconnect; without a leader, the thread that notices the disconnect does.

A background thread, the releaser, runs only while the sidecar may keep a lock that this client has given up: after a
release without a connection, or when the caller of an acquire does not wait any more. It ends when the sidecar has read
the release, or has answered the acquire.

Another background thread, the watcher, runs only while a hold has an on_lost callback. It waits like a thread whose
call is not answered, so it processes events when no other thread does. It calls the callbacks.

A signal handler may raise in the main thread, in every function here, and also while an interrupted function is being
completed. So the first statements of an except clause make no call. They record in Session.given_up what the function
leaves behind, an unanswered call or a hold. The next thread that uses the session completes that before anything else,
so the next acquire of the same owner is not sent too early. The next statement starts a background thread that
completes the function, so that completion does not depend on another use: handlers run in the main thread only. The
start is one call of a C function, so no handler runs before it has returned. contextlib.suppress() around it would be a
Python function, and could be interrupted. After that, the interrupted thread completes the function too, because
background threads may not be able to run. The duplicate is intended: completion is idempotent.

A signal handler, and a __del__ that the garbage collector runs, may also use the client. It is a frame on top of the
frames that it has interrupted on the same thread. What it may do depends on the innermost of those that use the
session::

    OUTSIDE    it does not hold the mutex, and does not wait
    FOLLOWING  it waits, and a waiter of another thread leads
    LEADING    it waits and leads; it may be inside of the poll
    INSIDE     it holds the mutex: the session may be changing

                 OUTSIDE        FOLLOWING             LEADING                          INSIDE
    read         as usual       as usual              as usual                         the last known state
    release      as usual       as usual              as usual                         given up (see above)
    close        as usual       as usual              as usual                         by a background thread
    wait         as usual       as another follower   takes the lead, gives it back    in another session
    confirm      as usual       as another follower   takes the lead, gives it back    raises Unconfirmed

The mutex is an RLock only because an RLock knows its thread. No frame locks it twice: is_inside() comes first.

A loss is logged before another frame reads it or on_lost is called, by the thread that needs it first; _log.Writer has
the rules. A frame INSIDE cannot log: what it reads is logged after it.

INSIDE, the interrupted frame continues with what it had read before. So the upper frame changes nothing of the
session. It only appends to Session.given_up, which the interrupted frame completes if it processes the session again,
or else a background thread. A wait has no such thread: Client._usable_session() returns another SharedSession.

LEADING, the upper frame becomes the leader. At its end the interrupted frame leads again, also if its call is DONE by
then, and the waker ends its poll, which may be that of a socket that is closed now. FOLLOWING, the interrupted frame is
not made the leader while the upper one waits.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from . import _fork, _log
from ._calls import DONE, Call, Confirm, confirm_call, ping_call, watch_call
from ._core import ENDED, SERVING, Entry
from ._errors import LockLost, LocksidecarError, NotHeld, Unavailable
from ._transport import (
    ANSWER_GRACE,
    BYE_WAIT,
    NO_WAIT,
    PEER_CLOSED,
    SEND_FLAG,
    ReusedPoll,
    Socket,
    Timeouts,
    Transport,
    socket_pair,
    wait_ready,
)
from ._waits import SLOW, WaitWatch

T = TypeVar("T")

# The attempts to complete a short function that signal handlers interrupt.
INTERRUPT_RETRIES: Final = (1, 2, 3, 4, 5)

# Seconds for which a finalizer waits: to start a thread takes longer than the answer of a sidecar that runs.
_DROPPED_WAIT: Final = 0.002
# Seconds between two attempts of the releaser.
_RELEASER_PAUSE: Final = 0.1
# The leader then looks whether its descriptors are still its own: other code may have replaced them before the poll.
_LONGEST_POLL: Final = 5.0
# The longest sleep of the watcher after the session has failed.
_WATCHER_PAUSE: Final = 0.5


class _CallWaiter:
    """A thread that waits until a call is DONE. Several threads may wait for one call.

    ::

               there is no leader
        NEW ─────────────────────────► LEADER ───── _hand_over() ──────┐
         │                              │ ▲ ▲                          ▼
         │       a frame on top leads   │ │ │ the leader stops waiting UNREGISTERED
         │                              ▼ │ │                          ▲
         │                       DISPLACED  │                          │
         │     there is a leader            │                          │
         └─────────────────────────► FOLLOWER ── DONE, or a timeout ───┘

    The leader is SharedSession._leader. A follower sleeps on its wakeup lock. A displaced leader is in the chain of
    leads_for of the leader, and waits until that one has given the lead back.

    A frame that waits may be interrupted by one that waits, too. Only the waiter of the uppermost frame of a thread is
    in SharedSession._waiting. The others follow it in the chain of outer. None of them can act before the frames on top
    of it have ended, so it is not made the leader.
    """

    __slots__ = ("call", "leads_for", "outer", "registered", "thread", "wakeup")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.registered = False  # LEADER, DISPLACED or FOLLOWER; to be unregistered before its thread returns
        self.wakeup = threading.Lock()  # held while the thread sleeps; released to wake it
        self.wakeup.acquire()
        self.thread = threading.get_ident()
        self.outer: _CallWaiter | None = None  # of the frame of this thread that this waiter's frame has interrupted
        self.leads_for: _CallWaiter | None = None  # the displaced leader


class SharedSession:
    """One session, shared by threads.

    mutex guards everything else, and is never held while a thread waits. A thread that holds it may connect and may
    read from the socket, but only the leader polls the socket. The waker ends its poll when another thread has read the
    leader's answer, when bytes are left to be sent, after a connect or disconnect, and when the session fails.

    The leader is a waiter and not a call, because several threads may wait for one call: the thread that closes the
    client and the releaser both wait for bye.
    """

    def __init__(self, transport: Transport, clock: Callable[[], int]) -> None:
        self._make_mutex()
        self.transport = transport
        self.session = transport.session
        self.pid = os.getpid()
        self._clock = clock
        self._leader: _CallWaiter | None = None
        self._polling = False  # the leader polls, or is about to
        self._waiting: dict[int, _CallWaiter] = {}  # the registered waiter of the uppermost frame of each thread
        self._disconnect_notified = False  # the waiters have been woken for the disconnect
        self._next_attempt = 0.0  # by time.monotonic()
        self._log = _log.Writer(self.session.log)
        self._waker = _Waker()
        self._reused_poll = ReusedPoll()
        self._releaser_running = False  # or is about to
        self._watched: dict[Entry, Callable[[LockLost], object]] = {}  # the on_lost callbacks
        self._watcher_running = False  # or is about to
        self._watch: Call[Any] | None = None  # what the watcher waits for
        _fork.register(self)

    def _make_mutex(self) -> None:
        mutex = threading.RLock()
        self.mutex = mutex
        # Whether the calling thread holds the mutex: a frame of it was interrupted INSIDE.
        self.is_inside: Callable[[], bool] = mutex._is_owned  # type: ignore[attr-defined]

    # --- Calls ---

    def execute(self, call: Call[Any], timeouts: Timeouts) -> bool:
        """Sends call and waits until it is DONE, with an answer or an error. The caller is not INSIDE.

        Returns False, and sends nothing, if the session has failed. The session is of this process. If this raises,
        call is abandoned, unless it is DONE.
        """
        try:
            with self.mutex:
                self._process_arrived()
                if self.session.failure is not None:
                    return False
                self.session.submit(call, self._clock())
                self._flush()
            self._wait_for(call, timeouts)
            if self.session.log:
                self._log.write()
            return True
        except LocksidecarError:
            self.session.given_up += [call]
            self.complete_given_up()
            raise
        except BaseException:
            self.session.given_up += [call]
            try:  # noqa: SIM105
                _thread.start_new_thread(self.complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            self.complete_interrupted()
            raise

    def complete_given_up(self) -> None:
        """Completes what the caller has added to Session.given_up.

        A grant to an abandoned acquire, now or later, is released. This does not depend on the next use of the client:
        the releaser reads the answer.
        """
        try:
            self.complete_interrupted()
        except BaseException:
            try:  # noqa: SIM105
                _thread.start_new_thread(self.complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            raise

    def complete_interrupted(self) -> None:
        """Completes what a signal handler interrupted, and what was given up. Idempotent.

        INSIDE, a background thread completes it.
        """
        if self.is_inside():
            self._run_in_background(self.complete_interrupted)
            return
        with self.mutex:
            self.session.complete_given_up(self._clock())
            self._process_arrived()
            if self._watched:
                for entry in [e for e in self._watched if e.has_been_released]:
                    if not (entry.has_lost_its_hold() and self._watcher_running):
                        self._watched.pop(entry, None)
                self._wake_watcher()  # it calls the callbacks of holds that were lost before, or ends
                self._notify()
            self._flush()
            unreleased = self._has_unreleased() and self.session.failure is None  # else close() starts it
        if unreleased:
            self._start_releaser()

    def _run_in_background(self, function: Callable[[], None]) -> None:
        """For a frame INSIDE: the function waits for the mutex."""
        with contextlib.suppress(RuntimeError):  # no thread can be started
            _thread.start_new_thread(function, ())

    def _wait_for(self, call: Call[Any], timeouts: Timeouts) -> None:
        waiter = _CallWaiter(call)
        transport = self.transport
        look_at = 0.0 if call.op == "acquire" else math.inf
        watch: WaitWatch | None = None
        try:
            while True:
                backoff = math.inf
                with self.mutex:
                    leader = self._leader
                    if transport.sock is None and (leader is None or leader.thread == waiter.thread):
                        backoff = self._connect_if_due()
                    if self.session.has_work():
                        self._receive()
                    if call.state is DONE:
                        return
                    now = time.monotonic()
                    if now >= look_at:
                        if look_at and watch is None:
                            watch = WaitWatch(call.name)
                        look_at = now + SLOW if watch is None else self._look(watch, now)
                    if not waiter.registered:
                        self._register(waiter)
                    leader = self._leader
                    leading = leader is None or leader.thread == waiter.thread
                    if leading:
                        if leader is not waiter:
                            waiter.leads_for = leader
                            self._leader = waiter
                        self._polling = True
                    left = transport.expires_at(timeouts) - now
                if left <= 0:
                    raise transport.timeout_error(call)
                left = min(left, look_at - now)
                if leading:
                    self._poll_as_leader(waiter, min(left, backoff, _LONGEST_POLL))
                else:
                    waiter.wakeup.acquire(timeout=-1 if left == math.inf else min(left, threading.TIMEOUT_MAX))
                if not waiter.registered:  # the call is DONE, and this thread is not the leader
                    return
        finally:
            # Without a leader, the other threads would wait without end.
            if waiter.registered:
                try:
                    self._stop_waiting(waiter)
                except BaseException:
                    try:  # noqa: SIM105
                        _thread.start_new_thread(self._stop_waiting, (waiter,))
                    except RuntimeError:  # no thread can be started
                        pass
                    raise

    def _look(self, watch: WaitWatch, now: float) -> float:
        look_at = watch.look(self.session, now, self._clock())
        self.transport.verify()
        self._flush()
        if self.session.log:
            self._run_in_background(self._log.write)  # a handler of the log must not keep the leader from reading
        return look_at

    def _stop_waiting(self, waiter: _CallWaiter) -> None:
        with self.mutex:
            if waiter.registered:
                self._notify()
                self._hand_over(waiter)

    def _poll_as_leader(self, waiter: _CallWaiter, seconds: float) -> None:
        waker, sock = self._waker, self.transport.sock
        if sock is None:
            ready = wait_ready([waker], [], seconds)
        elif (
            not self.session.unsent and waiter.leads_for is None
        ):  # the frame of a displaced leader may be inside of it
            ready = self._reused_poll.wait((waker, sock), seconds)
        else:
            # A thread that leaves bytes unsent, or connects, after unsent was read here wakes the leader.
            ready = wait_ready([waker, sock], [sock] if self.session.unsent else [], seconds)
        with self.mutex:
            self._polling = False
            if waker.woken or len(ready) != 1 or ready[0][0] == waker.fileno():
                self._drain_waker()
            self._receive()
            if waiter.leads_for is None:  # no frame polls an ended socket
                self.transport.close_ended_sockets()
            if waiter.call.state is DONE:
                self._hand_over(waiter)

    # --- With the mutex held ---

    def _process_arrived(self) -> None:
        """Processes what has arrived, and completes what a signal handler interrupted."""
        if self.session.unsent or self.transport.readable():
            self._receive()

    def _receive(self) -> None:
        try:
            self.transport.receive()
        finally:
            self._notify()
        if self.session.unsent:  # the release of a grant to an abandoned acquire, or the next step of the handshake
            self._flush()

    def _flush(self) -> None:
        """As Transport.flush(): the caller has just processed what has arrived."""
        try:
            if not self.transport.flush():
                self._wake_leader()
        finally:
            self._notify()

    def _connect_if_due(self) -> float:
        """Connects if the backoff has passed. Returns the seconds until the next attempt is due; inf: none is."""
        now = time.monotonic()
        if now < self._next_attempt:
            return self._next_attempt - now
        delay = self.transport.next_backoff()
        self._next_attempt = now + delay
        return math.inf if self._connect() else delay

    def _connect(self) -> bool:
        try:
            connected = self.transport.connect()
        finally:
            self._notify()
        if connected:
            self._wake_leader()  # it polls without the new socket
        return connected

    def _notify(self) -> None:
        """Wakes the threads whose calls are DONE. If it is interrupted, its next run continues."""
        session = self.session
        if not session.done_calls and not session.lost_holds and session.failure is None:
            if self._disconnect_notified is not (self.transport.sock is None):
                self._on_connection_changed()
            return
        if session.lost_holds:
            self._wake_watcher()
            session.lost_holds.clear()  # their holders read the loss from the Hold
        if session.failure is not None:
            self._wake_watcher()
            session.fail_pending()
            self._close_if_unneeded()
        if self._disconnect_notified is not (self.transport.sock is None):
            self._on_connection_changed()
        while session.done_calls:
            for waiter in tuple(session.done_calls[-1].waiters):
                if self._polling or waiter is not self._leader:  # else it is awake
                    self._wake(waiter)
            session.done_calls.pop()

    def _wake(self, waiter: _CallWaiter) -> None:
        """Wakes the thread of waiter, whose call is DONE."""
        leader = self._leader
        while leader is not None:
            if waiter is leader:  # or a displaced leader, which gets the lead back
                self._wake_leader()
                return
            leader = leader.leads_for
        _wake_thread(waiter.wakeup)
        self._unregister(waiter)  # here, so that its thread does not need the mutex

    def _register(self, waiter: _CallWaiter) -> None:
        outer = self._waiting.get(waiter.thread)
        # Commit:
        waiter.registered = True
        waiter.call.waiters += [waiter]
        waiter.outer = outer
        self._waiting[waiter.thread] = waiter

    def _unregister(self, waiter: _CallWaiter) -> None:
        if waiter in waiter.call.waiters:
            waiter.call.waiters.remove(waiter)
        if self._waiting.get(waiter.thread) is waiter:
            outer = waiter.outer
            while outer is not None and not outer.registered:
                outer = outer.outer
            if outer is None:
                self._waiting.pop(waiter.thread, None)
            else:
                self._waiting[waiter.thread] = outer
                _wake_thread(outer.wakeup)  # it leads if there is no leader now
        waiter.registered = False

    def _hand_over(self, waiter: _CallWaiter) -> None:
        """Unregisters waiter; if it is the leader, another waiter becomes the leader.

        Idempotent: if it is interrupted, it is called again.
        """
        if self._leader is waiter:
            next_leader = waiter.leads_for
            while next_leader is not None and not next_leader.registered:
                next_leader = next_leader.leads_for
            if next_leader is not None:
                self._wake_poll()  # its frame may be inside of the poll
            else:
                next_leader = self._next_leader(waiter)
            if next_leader is not None:
                _wake_thread(next_leader.wakeup)  # before the commit: the waker wakes the leader only
            # Commit:
            self._leader = next_leader
            self._polling = False
        if self.session.failure is not None:
            self._close_if_unneeded()
        self._unregister(waiter)

    def _next_leader(self, leader: _CallWaiter) -> _CallWaiter | None:
        for waiter in self._waiting.values():
            if waiter is not leader and not waiter.call.done:
                return waiter
        return None

    def _on_connection_changed(self) -> None:
        """Wakes all waiters after a disconnect: their timeouts have changed, and one of them has to connect."""
        disconnected = self.transport.sock is None
        if disconnected:
            if self._leader is None:
                self.transport.close_ended_sockets()
            self._wake_leader()
            for waiter in list(self._waiting.values()):
                _wake_thread(waiter.wakeup)
        self._disconnect_notified = disconnected

    def _wake_leader(self) -> None:
        if self._polling:
            self._wake_poll()
            self._polling = False  # in this order: an interrupt in between must not leave the leader asleep

    def _wake_poll(self) -> None:
        if not self._waker.wake():
            self._waker = _Waker()  # the end of the other one has ended the poll
            self._waker.wake()

    def _drain_waker(self) -> None:
        if not self._waker.drain():
            self._waker = _Waker()

    def _close_if_unneeded(self) -> None:
        # Not while the leader polls the socket: the number of a closed file may be reused at once.
        if self._leader is None and self.transport.close_if_unneeded():
            self._waker.close()

    def _has_unreleased(self) -> bool:
        """Whether the sidecar may keep a lock that this client has given up, unless a thread sends more to it."""
        session = self.session
        return (
            bool(session.unreleased_until or session.unsent or session.unanswered_cancels)
            and session.stage is not ENDED
        )

    # --- Holds ---

    def is_usable(self) -> bool:
        """Whether a call may be executed: the session is not known to have failed. False INSIDE."""
        return self.session.failure is None and not self.is_inside()

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

        Without a connection it first tries to reconnect, once: the sidecar may have extended the deadlines. INSIDE it
        does neither, and returns the last known state.
        """
        self.reset_if_forked()
        if self.is_inside():
            return read(self._clock(), False)
        reconnected = False
        try:
            while True:
                with self.mutex:
                    read_at = self._clock()
                    self._process_arrived()
                    if reconnected or self._is_connected_or_failed():
                        state = read(read_at, True)
                        # The process may have been stopped after it had read. Then a later deadline may have arrived.
                        if entry.has_ended() or self._clock() < self.session.deadline(entry.hold):
                            break
                        continue
                self._reconnect_once()
                reconnected = True
            if self.session.log or entry.hold.lost_reason:
                self._log.write(_log.PATIENCE if entry.hold.lost_reason else 0.0)
            return state
        except LocksidecarError:
            if self.session.log or entry.hold.lost_reason:
                self._log.write(_log.PATIENCE if entry.hold.lost_reason else 0.0)
            raise
        except BaseException:
            try:  # noqa: SIM105
                _thread.start_new_thread(self.complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            self.complete_interrupted()
            raise

    def _is_connected_or_failed(self) -> bool:
        """Whether a reconnect is not needed, or has no use."""
        return self.session.stage is SERVING or self.session.failure is not None

    def _reconnect_once(self) -> None:
        """Reconnects, if a sidecar listens, and waits until the session is resumed."""
        with self.mutex:
            connected = self._connect()
            unreleased = self._has_unreleased()
        if connected:
            with contextlib.suppress(LocksidecarError):
                self.execute(ping_call(), NO_WAIT)
        elif unreleased:
            self._start_releaser()

    def release(self, entry: Entry, confirm: Timeouts | None = None) -> None:
        """Releases entry. confirm: the timeouts of the wait for the confirmation; None: none is requested."""
        if self.is_inside():
            self._release_later(entry, confirm is not None)
            return
        call: Confirm | None = None
        unfinished: list[Call[Any] | Entry] = [entry]
        try:
            self.reset_if_forked()
            if confirm is not None:
                call = confirm_call(entry.hold)
                unfinished += [call]  # no thread will wait for it
            error = self._release_entry(entry, call)
        except BaseException:
            # The sidecar would renew a lock that is not released without end.
            self.session.given_up += unfinished
            entry.given_up = True
            try:  # noqa: SIM105
                _thread.start_new_thread(self.complete_interrupted, ())
            except RuntimeError:  # no thread can be started
                pass
            self.complete_interrupted()
            raise
        if self._watched:
            self._unwatch(entry)
        if self.session.log or error is not None:
            self._log.write(_log.PATIENCE if error is not None else 0.0)
        if error is not None:
            raise error
        if call is not None and confirm is not None:
            self._wait_for_confirmation(call, confirm)

    def downgrade(self, entry: Entry) -> None:
        """Makes the hold of entry shared, with all its entries."""
        self.check(entry)
        if self.is_inside():
            raise Unavailable(
                f"downgrade {entry.hold.name!r}: this thread was interrupted inside of this client, and cannot wait "
                "for the answer"
            )
        call = entry.begin_downgrade()
        if call is None:
            return
        if not self.execute(call, Timeouts()):
            assert self.session.failure is not None
            raise Unavailable(f"downgrade {entry.hold.name!r}: {self.session.failure}")
        try:
            entry.end_downgrade(call)
        except NotHeld:
            self.check(entry)  # raises LockLost
            raise

    def _release_later(self, entry: Entry, confirm: bool) -> None:
        """Gives entry up, for a frame INSIDE."""
        now = self._clock()
        entry.require_unreleased()
        reason = entry.lost(now, False)
        self.session.given_up += [entry]
        entry.given_up = True
        self._run_in_background(self.complete_interrupted)
        if reason:
            raise entry.loss_error(reason)
        if confirm:
            why = LocksidecarError("this thread was interrupted inside of this client, and cannot wait for it")
            raise self.session.unconfirmed(entry.hold, now).unconfirmed_error(why, now)

    def _release_entry(self, entry: Entry, call: Confirm | None) -> LocksidecarError | None:
        """Releases entry, and submits call, if there is one. Returns the error of the release."""
        error: LocksidecarError | None = None
        reconnected = False
        while True:
            with self.mutex:
                read_at = self._clock()
                self._process_arrived()
                if reconnected or entry.released or self._is_connected_or_failed():
                    try:
                        if call is None:
                            entry.release(read_at)
                        else:
                            entry.release_confirmed(call, read_at)
                    except LocksidecarError as e:
                        error = e
                    finally:
                        self._flush()
                    break
            self._reconnect_once()
            reconnected = True
        if (self.session.unreleased_until or self.session.unsent) and self._has_unreleased():
            self._start_releaser()
        return error

    def _wait_for_confirmation(self, call: Confirm, timeouts: Timeouts) -> None:
        """Waits for the confirmation; raises Unconfirmed."""
        try:
            if not call.done:
                try:
                    self._wait_for(call, timeouts)
                except BaseException:
                    self.session.given_up += [call]
                    self.complete_given_up()
                    raise
            call.result()
        except LocksidecarError as e:
            raise call.unconfirmed_error(e, self._clock()) from e

    # --- Callbacks ---

    def watch(self, entry: Entry, on_lost: Callable[[LockLost], object]) -> None:
        """Calls on_lost, in the watcher, if the hold of entry is lost before entry is released."""
        with self.mutex:
            self._watched[entry] = on_lost
            self._wake_watcher()  # the deadline of this hold may be the first
            self._notify()
            if self._watcher_running:
                return
            self._watcher_running = True
            try:
                _thread.start_new_thread(self._watcher_thread, ())  # as in _start_releaser()
            except RuntimeError:  # the interpreter is ending, and the session with it
                self._watcher_running = False

    def _unwatch(self, entry: Entry) -> None:
        with self.mutex:
            if entry.released and entry in self._watched:
                if not entry.was_lost:
                    del self._watched[entry]
                if entry.was_lost or not self._watched:
                    self._wake_watcher()  # it calls the callback of a hold that was lost before, or ends
                    self._notify()

    def _wake_watcher(self) -> None:
        """The caller holds the mutex, and calls _notify() if it is not _notify() itself."""
        call = self._watch
        if call is not None and not call.done:
            self.session.end_watch(call)

    def _watcher_thread(self) -> None:
        try:
            while self._watch_once():
                pass
        except BaseException:
            self._watcher_running = False
            raise

    def _watch_once(self) -> bool:
        """Waits for a loss, or for a deadline. Calls the callbacks of the holds that are lost.

        Returns False if nothing is watched any more.
        """
        with self.mutex:
            lost = self._take_lost()
            if not self._watched and not lost:
                self._watcher_running = False
                self._watch = None
                return False
            self._watch = call = watch_call()
            failed = self.session.failure is not None
            now = self._clock()
            left = min([self.session.deadline(entry.hold) - now for entry in self._watched], default=0) / 1e9
        if lost:
            self._in_watcher(lambda: self._log.write(_log.PATIENCE))
            for entry, on_lost in lost:
                _call_back(on_lost, entry.loss_error(entry.hold.lost_reason))
            return True
        left = max(left, 0.0)
        if failed:  # nothing arrives any more, and the socket must not be polled
            time.sleep(min(left, _WATCHER_PAUSE))
        else:
            with contextlib.suppress(LocksidecarError):  # a deadline has passed
                self._wait_for(call, Timeouts(math.inf, no_server=math.inf, reconnect=math.inf, total=left))
        for entry in list(self._watched):
            # Another thread may have released it meanwhile. A deadline that has passed is a loss only after a look at
            # what has arrived.
            if not entry.has_ended() and self._clock() >= self.session.deadline(entry.hold):
                self._in_watcher(functools.partial(self.lost, entry))
        if self.session.log:
            self._in_watcher(self._log.write)
        return True

    def _in_watcher(self, function: Callable[[], object]) -> None:
        """Calls a function that writes to the log. A handler of the log that raises does not end the watcher."""
        try:
            function()
        except Exception:
            _log.report_error("the log of the client failed")

    def _take_lost(self) -> list[tuple[Entry, Callable[[LockLost], object]]]:
        """Removes the entries that are lost or released from those that are watched. Returns the lost ones."""
        lost = []
        for entry, on_lost in list(self._watched.items()):
            if entry.has_ended():
                del self._watched[entry]
                if entry.has_lost_its_hold() and not self.session.inherited:
                    lost.append((entry, on_lost))
        return lost

    # --- The end ---

    def close(self) -> None:
        """Sends bye, and waits up to BYE_WAIT for its answer. INSIDE, a background thread does that."""
        self.reset_if_forked()
        if self.is_inside():
            self._run_in_background(self.close)
            return
        try:
            with self.mutex:
                self.transport.verify()
                bye = self.session.close(self._clock())
                self._flush()
                if not bye.done:
                    self._connect()
            if self.session.log:
                self._log.write()
            if not bye.done:
                with contextlib.suppress(LocksidecarError):
                    self._wait_for(bye, Timeouts(grace=BYE_WAIT, no_server=0.0, reconnect=0.0))
        finally:
            self.close_in_background()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Ends the session of a client that was dropped, as close() does.

        The end of the connection is not enough: a sidecar that dies may not have read the last releases, and its
        successor keeps the locks of a process that lives. This may interrupt any frame, so a thread waits for an answer
        that does not come at once.
        """
        if is_finalizing():  # the globals of this module may be None by now
            return
        session = self.session
        if session.failure is not None or not session.may_have_locks or self.pid != _fork.process_id():
            return
        transport, clock = self.transport, self._clock
        try:
            transport.verify()
            session.close(clock())
            transport.flush()
            transport.receive_within(_DROPPED_WAIT)
        finally:
            if session.stage is not ENDED:
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    _thread.start_new_thread(_close_dropped, (transport, clock))

    def close_in_background(self) -> None:
        """Ends a closed session. If the sidecar may still keep its locks, the releaser sends bye."""
        with self.mutex:
            unreleased = self._has_unreleased()
            if not unreleased:
                self.session.finish()
                self._notify()
        if unreleased:
            self._start_releaser()

    def _start_releaser(self) -> None:
        """Starts the releaser, unless it runs."""
        with self.mutex:
            if self._releaser_running:
                return
            self._releaser_running = True
            try:
                # Not threading.Thread: an interrupt of its start() leaves it in an undefined state. The function is
                # looked up here, because monkey patching may have replaced it.
                _thread.start_new_thread(self._releaser_thread, ())
            except RuntimeError:  # the interpreter is ending, and the session with it
                self._releaser_running = False

    def _releaser_thread(self) -> None:
        try:
            self._run_releaser()
        except BaseException:
            self._releaser_running = False
            raise

    def _run_releaser(self) -> None:
        """Waits until the sidecar, or a restarted one, has read what this client has given up."""
        session = self.session
        done = reported = False
        while not done:
            failed = False
            # After this time, the leases of everything that was given up have ended in Redis.
            left = max((session.unreleased_until - self._clock()) / 1e9, ANSWER_GRACE)
            timeouts = Timeouts(left, no_server=left, reconnect=left)
            try:
                if (call := self._outstanding_request()) is not None:
                    self._wait_for(call, timeouts)
                else:  # the answer to a ping proves that everything before it was read
                    failed = not self.execute(ping_call(), timeouts)
            except LocksidecarError:
                failed = True
            except Exception:  # such as that of a handler of the log; the locks have to be released all the same
                failed = True
                if not reported:
                    _log.report_error("a release is not delivered yet: the client tries again")
                    reported = True
            with self.mutex:
                # Under the mutex: a thread that gives up a lock after this starts a new releaser. If a lock was given
                # up during this attempt, or the client was closed, another attempt is necessary.
                expired = failed and self._clock() >= session.unreleased_until and not session.unanswered_cancels
                done = not self._has_unreleased() or expired
                if done:
                    self._releaser_running = False
                    if session.failure is not None:
                        session.finish()
                        self._notify()
            if failed and not done:
                time.sleep(_RELEASER_PAUSE)

    def _outstanding_request(self) -> Call[Any] | None:
        """The request whose answer the releaser waits for: bye, or an abandoned acquire; None: there is none."""
        with self.mutex:
            if self.session.failure is None:
                return next(iter(self.session.unanswered_cancels.values()), None)
            self.transport.verify()
            bye = self.session.close(self._clock())
            self._flush()
            return bye

    # --- Processes ---

    def reset_if_forked(self) -> None:
        """Checks the process id, because not every fork runs the hooks of os.register_at_fork()."""
        if self.pid != _fork.process_id():
            self._after_fork_in_child()

    def _after_fork_in_child(self) -> None:
        self.pid = os.getpid()
        self._make_mutex()
        self._leader = None
        self._polling = False
        self._waiting.clear()
        self._releaser_running = False
        self._watched.clear()
        self._watcher_running = False
        self._watch = None
        self._log.reset()
        self.transport.close_inherited()
        self._waker.close()


def _close_dropped(transport: Transport, clock: Callable[[], int]) -> None:
    with contextlib.suppress(LocksidecarError):  # there are too many open files: the connection ends with its socket
        SharedSession(transport, clock).close()


def _call_back(on_lost: Callable[[LockLost], object], loss: LockLost) -> None:
    try:
        on_lost(loss)
    except Exception:
        _log.report_error("on_lost of the lock %r failed", loss.name)


def _wake_thread(wakeup: threading.Lock) -> None:
    """Wakes the thread that sleeps on wakeup. The caller holds the mutex, so no other thread releases it meanwhile."""
    if wakeup.locked():
        wakeup.release()


class _Waker:
    """Wakes the leader, which polls it together with the socket.

    A pair of sockets: if other code closes all descriptors of the process, the poll of the leader ends.
    """

    _ends: tuple[Socket, Socket] | None = None  # what the leader polls, and what wakes it

    def __init__(self) -> None:
        if sys.platform == "linux":
            try:
                self._ends = socket_pair()
            except OSError as e:
                raise Unavailable(
                    f"cannot connect to the sidecar: {e.strerror}. Raise the limit of open files (ulimit -n)"
                ) from e
        self.woken = False

    def fileno(self) -> int:
        return -1 if self._ends is None else self._ends[0].fileno()

    def wake(self) -> bool:
        """Returns False if other code has closed it."""
        self.woken = True
        if self._ends is not None:
            if not self._ends[1].is_own():
                return False
            try:
                self._ends[1].send(b"x", SEND_FLAG)
            except BlockingIOError:  # it is full, so the leader is awake
                pass
            except PEER_CLOSED:
                return False
        return True

    def drain(self) -> bool:
        """Returns False if other code has closed it."""
        self.woken = False
        if self._ends is not None:
            if not self._ends[0].is_own():
                return False
            try:
                return self._ends[0].recv(4096) != b""
            except BlockingIOError:  # wake() was interrupted
                pass
            except PEER_CLOSED:
                return False
        return True

    def close(self) -> None:
        ends, self._ends = self._ends, None
        for end in ends or ():
            end.close()
