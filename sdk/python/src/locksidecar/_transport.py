"""The session's way to the sidecar: one socket after another. Sync and asyncio clients wait each in their way."""

from __future__ import annotations

import _socket
import errno
import math
import os
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from ._calls import Call, Confirm, check_number
from ._core import Session, Stage
from ._errors import BadRequest, ConfirmTimeout, Denied, LocksidecarError, Unavailable, Unsupported, sentence

T = TypeVar("T")

DEFAULT_SOCKET: Final = "/run/locksidecar/locksidecar.sock"

# How long a call puts up with a sidecar that is just starting, seconds: on a host where this client has not
# met one yet, …
CONNECT_WAIT: Final = 2.0
# … and after a connection, which makes it more likely that it comes back.
RECONNECT_WAIT: Final = 10.0
# How much later than due an answer may come before the sidecar is taken for stopped, seconds.
ANSWER_GRACE: Final = 5.0
# The same for an acquire, whose caller has said how long it may take.
ACQUIRE_GRACE: Final = 1.0
# How long an event loop is kept waiting by who must know at once whether a lock is still held, seconds.
GREETING_WAIT: Final = 1.0
# How long close() waits for the answer to bye, seconds.
BYE_WAIT: Final = 1.0

_RECV_SIZE: Final = 65_536
# Only for polls that do not wait: so it does not matter that monkey patching may replace it later. None: eventlet
# has removed it.
_POLL: Final = getattr(select, "poll", None)
# Without a signal: a program that dies of SIGPIPE shall not die because the sidecar did.
_SEND_FLAGS: Final = (getattr(socket, "MSG_NOSIGNAL", 0),)

# What recv() and send() raise when the other end is gone. No other OSError tells that: there may be no memory,
# or a signal's handler raised a TimeoutError. To take the connection for ended then, and close it, would give
# away locks that are believed to be held.
_PEER_CLOSED: Final = (ConnectionResetError, BrokenPipeError)


def require_linux() -> None:
    """Raises Unsupported on another system: the package can be imported there, but no sidecar runs there."""
    if sys.platform != "linux":
        raise Unsupported(
            f"the sidecar runs on Linux only, and this program runs on {sys.platform}; "
            "run it on a Linux host or in a Linux container, beside a sidecar"
        )


def socket_path(path: str | os.PathLike[str] = "") -> str:
    """The path, or if it is empty $LOCKSIDECAR_SOCKET, or else the default."""
    path = os.fspath(path) or os.environ.get("LOCKSIDECAR_SOCKET", "") or DEFAULT_SOCKET
    if len(os.fsencode(path)) > 107:
        raise BadRequest(f"the path of a socket may have at most 107 bytes: {path}")
    return path


class Socket(_socket.socket):
    """A socket that is closed when it is forgotten, without a ResourceWarning.

    A client may live as long as its process and need not be closed. The base class is the one in C: that of the
    socket module makes a socket in several steps, between which a signal handler may raise, and monkey patching
    replaces it.
    """

    def __del__(self) -> None:
        self.close()


def dial(path: str) -> Socket:
    """Connects at once or not at all: OSError. On a Unix socket there is nothing to wait for."""
    if sys.platform != "linux":
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    sock = Socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def may_be_starting(error: OSError) -> bool:
    """Whether a sidecar that is just starting, or has many clients at once, explains the error."""
    return error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)


class Backoff:
    """How long to wait between attempts to connect, so that the clients of a host do not come all at once."""

    def __init__(self) -> None:
        self._delay = 0.0

    def next(self) -> float:
        """Seconds."""
        delay = self._delay * random.uniform(0.5, 1.0)
        self._delay = min(max(self._delay * 1.5, 0.005), 0.1)
        return delay


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def wait_ready(reads: Sequence[HasFileno], writes: Sequence[HasFileno], seconds: float) -> None:
    """Waits until one of reads has something to read, or one of writes has room, or the seconds have passed.

    The functions are looked up when they are used, because monkey patching may replace them at any time: gevent puts
    its own poll() in place, eventlet removes poll() and leaves a select() of its own.
    """
    if sys.platform != "win32" and hasattr(select, "poll"):
        poll = select.poll()
        for file in reads:
            poll.register(file, select.POLLIN | (select.POLLOUT if file in writes else 0))
        poll.poll(seconds * 1000)
    else:
        select.select(reads, writes, [], seconds)


@dataclass(slots=True)
class Timeouts:
    """How long one call puts up with what, in seconds from its beginning."""

    answer: float = 0.0  # for its answer, once asked
    grace: float = ANSWER_GRACE  # for an answer that is late
    no_server: float = CONNECT_WAIT  # while no sidecar listens, and none has before
    reconnect: float = RECONNECT_WAIT  # while no sidecar listens any more
    total: float = math.inf  # with all of these together
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def for_acquire(cls, timeout: float | None) -> Timeouts:
        if timeout is None:
            return cls(math.inf)
        # A restart shall not be noticed, so an acquire that does not wait for the lock waits for a short restart.
        # A sidecar that is stopped is not waited for any longer than one that is gone.
        return cls(
            timeout,
            grace=max(CONNECT_WAIT - timeout, ACQUIRE_GRACE),
            no_server=min(timeout, CONNECT_WAIT),
            reconnect=min(max(timeout, CONNECT_WAIT), RECONNECT_WAIT),
        )

    @classmethod
    def for_confirm(cls, timeout: float | None) -> Timeouts:
        """A timeout below 0 is no error, but one that has passed: the lock has to be released in any case."""
        if timeout is not None:
            check_number("timeout", timeout)
        return cls(math.inf, total=math.inf if timeout is None else max(0.0, timeout))


NO_WAIT: Final = Timeouts(no_server=0.0, reconnect=0.0, started=0.0)


def connect_error(path: str, error: OSError) -> LocksidecarError:
    match error.errno:
        case errno.ENOENT:
            return Unavailable(
                f"no sidecar: there is no socket {path}. Is locksidecar running on this host? "
                "If it listens elsewhere, set LOCKSIDECAR_SOCKET or pass its path to connect()"
            )
        case errno.ECONNREFUSED:
            return Unavailable(f"no sidecar: no process listens on {path}. Is locksidecar running on this host?")
        case errno.EAGAIN:
            return Unavailable(f"the sidecar at {path} does not accept connections; is it stopped or overloaded?")
        case errno.ECONNRESET:
            return Unavailable(
                f"the process that listens on {path} closed the connection before it answered; is it locksidecar?"
            )
        case errno.EMFILE | errno.ENFILE:
            return Unavailable(
                f"cannot connect to the sidecar at {path}: {error.strerror}. Raise the limit of open files (ulimit -n)"
            )
        case errno.EACCES | errno.EPERM:
            return Denied(f"this process may not connect to {path}: {_permission_hint(path)}")
    return Unavailable(f"cannot connect to the sidecar at {path}: {error.strerror or error}")


def _permission_hint(path: str) -> str:
    if sys.platform == "win32":
        return ""
    import grp

    try:
        status = os.stat(path)
    except OSError:
        return f"it may not search the directory {os.path.dirname(path)}"
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    return f"run it as a member of the group {group} (the socket's mode is {status.st_mode & 0o777:04o})"


def _append_result(results: list[T], function: Callable[..., T], *args: tuple[object]) -> None:
    """Appends the result of function to results, and does so even if a signal's handler raises meanwhile.

    Python runs handlers when a call is over, before the result is assigned to anything. A count or bytes
    that got lost there would break the stream. Nothing comes between map() and extend(). Because of map()
    each argument is a tuple of one.
    """
    results.extend(map(function, *args))


class Availability(IntEnum):
    """Whether a sidecar serves the session. How long a call waits for one depends on it.

    ::

                 served                connection lost
        UNKNOWN ────────► SERVING ◄─────────────────────► AWAY
                                          served
    """

    UNKNOWN = 0  # none has yet, for this client
    SERVING = 1  # one does
    AWAY = 2  # one has, and may come back


class Transport:
    """Moves a session's bytes over a non-blocking socket, and over another one when that has ended.

    The sidecar gives a session's locks away when this end closes the connection. So that never happens while
    a hold may still be believed in: after a failure it stays open, unused, until the last such hold was
    released or its deadline passed.
    """

    def __init__(self, session: Session, clock: Callable[[], int]) -> None:
        require_linux()
        self.session = session
        self.closed = False
        self.sock: Socket | None = None
        self._poll: Any = None  # a poll() of the socket
        # Sockets that ended, to be closed by close_ended_sockets() when no thread waits on them any more: the number
        # of a closed file may be another file's a moment later.
        self._ended_sockets: list[Socket] = []
        self._clock = clock
        self._availability = Availability.UNKNOWN
        self._since = time.monotonic()  # of the last change between being served and not
        self._connected_at = 0.0  # when this connection was made
        self._greeting_budget = 0.0  # how long finish_greeting() may still wait on it
        self._backoff = Backoff()  # since it was served
        self._last_error = OSError(errno.ENOENT, os.strerror(errno.ENOENT))  # of the last attempt
        self._last_deadline: int | None = None  # of a failed session, once known

    # --- Connections ---

    def connect(self) -> bool:
        """Connects, if there is no connection, at once or not at all; tells whether there is one now."""
        session = self.session
        if session.stage is Stage.DISCONNECTED:
            self._follow_stage()
            if self.sock is None:
                try:
                    sock = dial(session.path)
                except OSError as e:
                    if e.errno is None:  # a handler of a signal raised it
                        raise
                    self._last_error = e.with_traceback(None)
                    if self._availability is Availability.UNKNOWN and not may_be_starting(e):
                        error = connect_error(session.path, e)
                        session.fail(sentence(str(error)), type(error))
                    return False
                poll = None
                if sys.platform != "win32" and _POLL is not None:
                    poll = _POLL()
                    poll.register(sock, select.POLLIN)
                # Commit:
                self._poll = poll
                self.sock = sock
            self._connected_at = time.monotonic()
            self._greeting_budget = GREETING_WAIT
            session.on_connected(self._clock())
            self.flush()
        return self.sock is not None

    def next_backoff(self) -> float:
        """How long to wait between this attempt to connect and the next."""
        return self._backoff.next()

    def expires_at(self, timeouts: Timeouts) -> float:
        """When a caller with that patience gives up, as things are now, by time.monotonic(); inf: never."""
        end = timeouts.started + timeouts.total
        if self._availability is Availability.SERVING:
            return min(end, max(timeouts.started + timeouts.answer, self._since) + timeouts.grace)
        known = self._availability is not Availability.UNKNOWN
        until = max(timeouts.started, self._since) + (timeouts.reconnect if known else timeouts.no_server)
        if self.sock is not None:
            until = max(until, self._connected_at + timeouts.grace)
        return min(end, until)

    def timeout_error(self, call: Call[Any]) -> LocksidecarError:
        """Why, as things are now, the caller of call gave up."""
        if isinstance(call, Confirm) and self._availability is Availability.SERVING:
            return ConfirmTimeout("no confirmation came in time; is Redis slow or away, or the sidecar stopped?")
        if self.sock is None:
            error = connect_error(self.session.path, self._last_error)
        else:
            error = Unavailable(
                f"the sidecar at {self.session.path} does not answer; is it stopped or overloaded?",
                may_have_happened=call.op == "force_release" and call.may_have_been_read,
            )
        if isinstance(call, Confirm):
            return error
        what = f"{sentence(str(error))} This {call.op} is given up"
        if isinstance(error, Unavailable):
            return Unavailable(what, may_have_happened=error.may_have_happened or call.sent_before)
        return type(error)(what)

    def readable(self) -> bool:
        """Whether there may be something for receive(). To ask costs less than a recv() that finds nothing."""
        session = self.session
        if session.stage is not Stage.SERVING or session.has_work():
            return True
        return self._poll is None or bool(self._poll.poll(0))

    def receive(self) -> None:
        """Reads all that has arrived, and processes it. If it is interrupted it is called again."""
        session = self.session
        if session.has_work():
            session.process(self._clock())
        while self.sock is not None and session.stage > Stage.DISCONNECTED:
            try:
                _append_result(session.received, self.sock.recv, (_RECV_SIZE,))
            except BlockingIOError:
                break
            except _PEER_CLOSED:
                self._on_disconnected()
                break
            size = sum(map(len, session.received))
            session.process(self._clock())
            if size == 0:
                self._on_disconnected()
            elif size < _RECV_SIZE:
                break
        served = self._availability is Availability.SERVING
        if session.stage is Stage.DISCONNECTED or served is not (session.stage is Stage.SERVING):
            self._follow_stage()

    def flush(self) -> bool:
        """Sends what can be sent without waiting; tells whether that was all."""
        session = self.session
        sent: list[int] = []
        while session.unsent and self.sock is not None:
            sent.clear()
            try:
                _append_result(sent, self.sock.send, (session.unsent,), _SEND_FLAGS)
            except BlockingIOError:
                return False
            except _PEER_CLOSED:
                self.receive()  # the sidecar may have said why
                self._on_disconnected()
            finally:
                if sent:  # no call here: before it returned a handler might raise
                    del session.unsent[: sent[0]]
        return True

    def finish_greeting(self) -> None:
        """Goes on with a greeting, and waits for it, though not for long over all of its calls."""
        started = time.monotonic()
        until = started + self._greeting_budget
        while (sock := self.sock) is not None and self.session.stage in (Stage.GREETING, Stage.CLAIMING):
            left = until - time.monotonic()
            if left <= 0:
                break
            wait_ready([sock], [sock] if self.session.unsent else [], left)
            self.receive()
            self.flush()
        self._greeting_budget -= time.monotonic() - started

    def _on_disconnected(self) -> None:
        """The connection has ended."""
        if self.session.stage is Stage.GREETING:
            self._last_error = OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self.session.on_disconnected(self._clock())
        self._follow_stage()

    def _follow_stage(self) -> None:
        """Keeps up with the session's stage. If it is interrupted it is called again."""
        stage = self.session.stage
        if stage is Stage.DISCONNECTED and self.sock is not None:
            self._ended_sockets.append(self.sock)
            self.sock = None
        serving = stage is Stage.SERVING
        if (self._availability is Availability.SERVING) is not serving:
            availability = Availability.SERVING if serving else Availability.AWAY
            since = time.monotonic()
            backoff = Backoff() if serving else self._backoff
            # Commit:
            self._availability = availability
            self._backoff = backoff
            self._since = since

    def close_ended_sockets(self) -> None:
        while self._ended_sockets:
            self._ended_sockets[-1].close()
            self._ended_sockets.pop()

    # --- The end ---

    def close_if_unneeded(self) -> bool:
        """Closes the socket of a failed session if its holds cannot be believed in; tells whether it is closed."""
        session = self.session
        if self.closed or session.stage is not Stage.ENDED:
            return self.closed  # as long as bye has to be said it is not
        if session.live_holds and self.sock is not None:
            if self._last_deadline is None:
                self._last_deadline = session.latest_deadline()
            if self._clock() < self._last_deadline:
                return False
        self.closed = True
        self.close_ended_sockets()
        if self.sock is not None:
            self.sock.close()
        return True

    def close_inherited(self) -> None:
        """In a forked child: gives up this process's copies of the sockets, and only that."""
        self.session.inherited = True
        self.session.fail("This process was forked; the connection is its parent's.")
        self.closed = True
        sock, self.sock = self.sock, None
        for inherited in (sock, *self._ended_sockets):
            if inherited is not None and inherited.fileno() >= 0:
                os.close(inherited.detach())
