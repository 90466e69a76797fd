"""The line to the sidecar that the threads of a process share.

No thread belongs to it. Of those that wait for an answer one, the leader, waits on the socket and hands the
others theirs; when it has its own, it passes the role on. What nobody waits for (a lock was lost) is read by
the next call, or by check(). The same goes for the end of the connection: the leader, or else whoever notices
it, connects again.

Only what was released while nobody listened needs a thread of its own, for nobody may come to say so: the
sidecar's successor would keep it for a process that lives.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from . import _fork
from ._core import Call, Confirm, Entry, Session, Stage
from ._errors import LocksidecarError
from ._link import ANSWER_GRACE, AT_ONCE, BYE_WAIT, Link, Patience, Socket

T = TypeVar("T")

TRIES: Final = (1, 2, 3, 4, 5)


class Line:
    """One session, shared by threads.

    mutex guards everything else, but is never held while waiting. A thread that holds it may connect and
    read from the socket; only the leader waits for it: the first to wait, then whom it names when it leaves.
    It is woken by the bell when its answer was read by another thread, when there is something left to write,
    when the connection is another one, or when the session failed.
    """

    def __init__(self, link: Link, clock: Callable[[], int]) -> None:
        self.mutex = threading.Lock()
        self.link = link
        self.session = link.session
        self._clock = clock
        self._leader: Call[Any] | None = None
        self._polling = False  # the leader is about to wait, or waits
        # Who waits for an answer, the leader too. A permit is released to wake its thread.
        self._waiting: dict[Call[Any], threading.Lock] = {}
        self._adrift = False  # those who wait have been told
        self._next_attempt = 0.0  # by time.monotonic()
        self._bell = _Bell()
        self._poll = select.poll()
        self._polled: Socket | None = None  # what it is registered with, but for the bell
        self._poll.register(self._bell, select.POLLIN)
        self._rescuer: threading.Thread | None = None
        _fork.watch(self)

    # --- Calls ---

    def call(self, ask: Callable[[Session], Call[T]], patience: Patience) -> Call[T]:
        """Asks and waits until it is done, whatever comes of it.

        When patience ends the sidecar is given up. However this ends without the call being done, the
        call has been abandoned.
        """
        call: Call[T] | None = None
        try:
            with self.mutex:
                call = ask(self.session)
                self._flush()
            self._await(call, patience)
        except BaseException:
            if call is not None:
                self.abandon(call)
            raise
        return call

    def abandon(self, call: Call[Any]) -> None:
        with self.mutex:
            self.session.abandon(call, self._clock())
            self._flush()
            owing = self._owing() and self.session.failure is None  # else close() sees to it
        if owing:
            self._rescue()

    def _await(self, call: Call[Any], patience: Patience) -> None:
        permit = threading.Lock()
        permit.acquire()
        link = self.link
        try:
            while True:
                nap = math.inf
                with self.mutex:
                    if link.sock is None and self._leader in (None, call):
                        nap = self._attempt()
                    if call.done:
                        return
                    self._waiting[call] = permit
                    if self._leader is None:
                        self._leader = call
                    leading = self._leader is call
                    if leading:
                        self._polling = True
                        if link.unheeded:
                            nap = 0.0
                    left = link.give_up_at(patience) - time.monotonic()
                if left <= 0:
                    raise link.given_up(call)
                if leading:
                    self._lead(call, min(left, nap))
                else:
                    permit.acquire(timeout=-1 if left == math.inf else min(left, threading.TIMEOUT_MAX))
                if call not in self._waiting:  # it is done, and no part is left for this thread
                    return
        finally:
            # A handler of a signal may raise here too. Others would wait for ever for a leader that has
            # left without a word, so it is done again until it is done. Python runs handlers at calls, so
            # there is none before the inner try.
            if call in self._waiting:
                interrupt: BaseException | None = None
                for _ in TRIES:
                    try:
                        with self.mutex:
                            self._resign(call)
                        break
                    except BaseException as e:
                        interrupt = e
                if interrupt is not None:
                    raise interrupt

    def _lead(self, call: Call[Any], seconds: float) -> None:
        sock = self.link.sock
        if sock is not self._polled:
            self._poll = select.poll()
            self._poll.register(self._bell, select.POLLIN)
            self._polled = sock
        if sock is not None:
            # Whoever leaves something unsent, or connects, after this look rings the bell.
            self._poll.register(sock, select.POLLIN | (select.POLLOUT if self.session.unsent else 0))
        self._poll.poll(min(seconds, 3600.0) * 1000)
        with self.mutex:
            self._polling = False
            self._bell.silence()
            self._pump()
            self.link.close_ended()
            if call.done:
                self._resign(call)

    # --- With the mutex held ---

    def _hear(self) -> None:
        """Takes note of what the sidecar said, and goes on with what somebody was interrupted in."""
        if self.session.done or self.session.unsent or self.link.news():
            self._pump()

    def _pump(self) -> None:
        try:
            self.link.pump()
        finally:
            self._tell()
        if self.session.unsent:  # the release of a grant that came too late, or what a greeting goes on with
            self._flush()

    def _flush(self) -> None:
        try:
            if not self.link.flush():
                self._wake_leader()
        finally:
            self._tell()

    def _attempt(self) -> float:
        """Connects if it is time to; tells how long to wait for the next time."""
        now = time.monotonic()
        if now < self._next_attempt:
            return self._next_attempt - now
        pause = self.link.pause()
        self._next_attempt = now + pause
        return math.inf if self._connect() else pause

    def _connect(self) -> bool:
        try:
            connected = self.link.connect()
        finally:
            self._tell()
        if connected:
            self._wake_leader()  # it waits without the new socket
        return connected

    def _tell(self) -> None:
        """Wakes those whose calls are done. If it is interrupted, the next one goes on with it."""
        session = self.session
        if session.lost:
            session.lost.clear()  # whoever cares asks
        if session.failure is not None:
            session.fail_pending()
            self._settle()
        if self._adrift is not (self.link.sock is None):
            self._turn()
        while session.done:
            call = session.done[-1]
            if call is self._leader:
                self._wake_leader()
            elif (permit := self._waiting.get(call)) is not None:
                _give(permit)
                self._waiting.pop(call, None)  # so that its thread, once awake, does not need the mutex
            session.done.pop()

    def _resign(self, call: Call[Any]) -> None:
        """Who waits for call leaves, and passes on the lead. If it is interrupted it is called again."""
        if self._leader is call:
            heir = self._heir(call)
            if heir is not None:
                _give(self._waiting[heir])  # before it leads, for who leads is woken by nobody but the bell
            self._leader = heir
            self._polling = False
        self._tell()
        self._waiting.pop(call, None)

    def _heir(self, leader: Call[Any]) -> Call[Any] | None:
        for call in self._waiting:
            if call is not leader and not call.done:
                return call
        return None

    def _turn(self) -> None:
        """There is a connection, or there is none any more: how long each of those who wait will do so is
        another question now, and somebody has to connect."""
        adrift = self.link.sock is None
        if adrift:
            if self._leader is None:
                self.link.close_ended()
            self._wake_leader()
            for permit in list(self._waiting.values()):
                _give(permit)
        self._adrift = adrift

    def _wake_leader(self) -> None:
        if self._polling:
            self._bell.ring()
            self._polling = False  # not before: an interrupt in between would leave the leader asleep

    def _settle(self) -> None:
        # Not under the leader's poll: the number of a closed file may be another file's a moment later.
        if self._leader is None and self.link.settle():
            self._bell.close()

    def _owing(self) -> bool:
        """Whether something was given up that the sidecar may not hear of unless somebody sees to it."""
        session = self.session
        return bool(session.debt or session.unsent) and session.stage is not Stage.OVER

    # --- Holds ---

    def usable(self) -> bool:
        with self.mutex:
            self._hear()
            return self.session.failure is None

    def check(self, entry: Entry) -> None:
        self._look(entry.check)

    def lost(self, entry: Entry) -> str:
        return self._look(entry.lost)

    def remaining(self, entry: Entry) -> int:
        return self._look(entry.remaining)

    def deadline(self, entry: Entry) -> int:
        return self._look(lambda _: self.session.deadline(entry.hold))

    def _look(self, at: Callable[[int], T]) -> T:
        """What is known now. A connection that has ended is made good for first, if somebody listens: the
        deadlines that it told may have been moved on."""
        with self.mutex:
            self._hear()
            if self._in_touch():
                return at(self._clock())
        self._seek()
        with self.mutex:
            return at(self._clock())

    def _in_touch(self) -> bool:
        return self.session.stage is Stage.SERVING or self.session.failure is not None

    def _seek(self) -> None:
        """Tries once to get back in touch."""
        with self.mutex:
            connected = self._connect()
            owing = self._owing()
        if connected:
            with contextlib.suppress(LocksidecarError):
                self.call(Session.ping, AT_ONCE)
        elif owing:
            self._rescue()

    def release(self, entry: Entry, confirm: Patience | None = None) -> None:
        """confirm: the patience of the wait for the confirmation; None: none is requested."""
        # A lock that a handler of a signal kept from being released would be renewed for ever.
        interrupt: BaseException | None = None
        error: LocksidecarError | None = None
        confirms: list[Confirm] = []  # one or none, requested after the release
        sought = False
        for _ in TRIES:
            try:
                with self.mutex:
                    self._hear()
                    seek = not (self.session.stage is Stage.SERVING or sought or entry.released or self._in_touch())
                    if not seek:
                        error = self._leave(entry, interrupt is not None, None if confirm is None else confirms)
                if seek:
                    sought = True
                    self._seek()
                    with self.mutex:
                        error = self._leave(entry, interrupt is not None, None if confirm is None else confirms)
                if (self.session.debt or self.session.unsent) and self._owing():
                    self._rescue()
                break
            except BaseException as e:
                interrupt = e
        if interrupt is not None:
            # This thread does not wait for the confirmation. The session ignores the answer.
            for call in confirms:
                self.abandon(call)
            raise interrupt
        if error is not None:
            raise error
        if confirm is not None:
            for call in confirms:
                self._confirm(call, confirm)

    def _leave(self, entry: Entry, again: bool, confirms: list[Confirm] | None) -> LocksidecarError | None:
        """confirms: gets the request for the confirmation; None: none is requested."""
        try:
            if again and entry.released:
                pass
            elif confirms is None:
                entry.release(self._clock())
            else:
                confirms.append(entry.release_confirmed(self._clock()))
        except LocksidecarError as e:
            return e
        finally:
            self._flush()
        return None

    def _confirm(self, call: Confirm, patience: Patience) -> None:
        """Waits for the confirmation; raises Unconfirmed."""
        try:
            if not call.done:
                try:
                    self._await(call, patience)
                except BaseException:
                    self.abandon(call)
                    raise
            call.result()
        except LocksidecarError as e:
            raise call.unconfirmed(e, self._clock()) from e

    # --- The end ---

    def close(self) -> None:
        """Says bye, and waits for the answer a moment."""
        with self.mutex:
            bye = self.session.close(self._clock())
            self._flush()
            if not bye.done:
                self._connect()
        try:
            if not bye.done:
                with contextlib.suppress(LocksidecarError):
                    self._await(bye, Patience(grace=BYE_WAIT, unmet=0.0, gone=0.0))
        finally:
            self.see_off()

    def see_off(self) -> None:
        """Leaves a closed session, or has its bye said in the background, if that matters to anybody."""
        with self.mutex:
            owing = self._owing()
            if not owing:
                self.session.part()
                self._tell()
        if owing:
            self._rescue()

    def _rescue(self) -> None:
        """Sees to it that the sidecar, or its successor, hears of what was given up."""
        with self.mutex:
            if self._rescuer is not None and self._rescuer.is_alive():
                return
            thread = self._rescuer = threading.Thread(target=self._see_through, name="locksidecar", daemon=True)
        try:
            thread.start()
        except BaseException as e:
            self._rescuer = None
            if not isinstance(e, RuntimeError):  # the interpreter is about to end, and everything with it
                raise

    def _see_through(self) -> None:
        session = self.session
        done = False
        while not done:
            given_up = False
            # By the end of it nothing is left in Redis of what was given up.
            left = max((session.debt - self._clock()) / 1e9, ANSWER_GRACE)
            patience = Patience(left, unmet=left, gone=left)
            try:
                if session.failure is None:
                    # Its answer tells that all before it was read.
                    self.call(Session.ping, patience)
                else:
                    self._await(session.close(self._clock()), patience)
            except LocksidecarError:
                given_up = True
            with self.mutex:
                # Under the mutex, so that whoever owes anything later finds no rescuer. What was owed since
                # the attempt began, or is by who closed the client meanwhile, is worth another one.
                done = not self._owing() or (given_up and self._clock() >= session.debt)
                if done:
                    self._rescuer = None
                    if session.failure is not None:
                        session.part()
                        self._tell()

    def after_fork_in_child(self) -> None:
        self.mutex = threading.Lock()
        self._leader = None
        self._polling = False
        self._waiting.clear()
        self._rescuer = None
        self.link.disown()
        self._bell.close()


def _give(permit: threading.Lock) -> None:
    """Lets its thread go on. Only who holds the line's mutex gives one, so there is at most one to take."""
    if permit.locked():
        permit.release()


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
