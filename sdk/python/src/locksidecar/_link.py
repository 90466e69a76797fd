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
from typing import Any, Final, Protocol, TypeVar

from ._calls import Call, Confirm, check_number
from ._core import Session, Stage
from ._errors import BadRequest, Denied, LocksidecarError, TookTooLong, Unavailable, Unsupported, sentence

T = TypeVar("T")

DEFAULT_SOCKET: Final = "/run/locksidecar/locksidecar.sock"

# How long a call puts up with a sidecar that is just starting, seconds: on a host where this client has not
# met one yet, …
CONNECT_WAIT: Final = 2.0
# … and after a connection, which makes it more likely that it comes back.
RESUME_WAIT: Final = 10.0
# How much later than due an answer may come before the sidecar is taken for stopped, seconds.
ANSWER_GRACE: Final = 5.0
# The same for an acquire, whose caller has said how long it may take.
ACQUIRE_GRACE: Final = 1.0
# How long an event loop is kept waiting by who must know at once whether a lock is still held, seconds.
GREETING_WAIT: Final = 1.0
# How long close() waits for the answer to bye, seconds.
BYE_WAIT: Final = 1.0

_CHUNK: Final = 65_536
# Only for polls that do not wait: so it does not matter that monkey patching may replace it later. None: eventlet
# has removed it.
_POLL: Final = getattr(select, "poll", None)
# Without a signal: a program that dies of SIGPIPE shall not die because the sidecar did.
_FLAGS: Final = (getattr(socket, "MSG_NOSIGNAL", 0),)

# What recv() and send() raise when the other end is gone. No other OSError tells that: there may be no memory,
# or a signal's handler raised a TimeoutError. To take the connection for ended then, and close it, would give
# away locks that are believed to be held.
_ENDED: Final = (ConnectionResetError, BrokenPipeError)


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


def starting(error: OSError) -> bool:
    """Whether a sidecar that is just starting, or has many clients at once, explains the error."""
    return error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)


class Pauses:
    """How long to wait between attempts to connect, so that the clients of a host do not come all at once."""

    def __init__(self) -> None:
        self._next = 0.0

    def next(self) -> float:
        """Seconds."""
        pause = self._next * random.uniform(0.5, 1.0)
        self._next = min(max(self._next * 1.5, 0.005), 0.1)
        return pause


class Readable(Protocol):
    def fileno(self) -> int: ...


def wait(reads: Sequence[Readable], writes: Sequence[Readable], seconds: float) -> None:
    """Waits until one of reads has something to read, or one of writes has room, or the seconds have passed.

    The functions are looked up when they are used, because monkey patching may replace them at any time: gevent puts
    its own poll() in place, eventlet removes poll() and leaves a select() of its own.
    """
    if sys.platform != "win32" and hasattr(select, "poll"):
        poll = select.poll()
        for thing in reads:
            poll.register(thing, select.POLLIN | (select.POLLOUT if thing in writes else 0))
        poll.poll(seconds * 1000)
    else:
        select.select(reads, writes, [], seconds)


@dataclass(slots=True)
class Patience:
    """How long one call puts up with what, in seconds from its beginning."""

    wait: float = 0.0  # for its answer, once asked
    grace: float = ANSWER_GRACE  # for an answer that is late
    unmet: float = CONNECT_WAIT  # while no sidecar listens, and none has before
    gone: float = RESUME_WAIT  # while no sidecar listens any more
    most: float = math.inf  # with all of these together
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def to_acquire(cls, timeout: float | None) -> Patience:
        if timeout is None:
            return cls(math.inf)
        # A restart shall not be noticed, so an acquire that does not wait for the lock waits for a short restart.
        # A sidecar that is stopped is not waited for any longer than one that is gone.
        return cls(
            timeout,
            grace=max(CONNECT_WAIT - timeout, ACQUIRE_GRACE),
            unmet=min(timeout, CONNECT_WAIT),
            gone=min(max(timeout, CONNECT_WAIT), RESUME_WAIT),
        )

    @classmethod
    def to_confirm(cls, timeout: float | None) -> Patience:
        """A timeout below 0 is no error, but one that has passed: the lock has to be released in any case."""
        if timeout is not None:
            check_number("timeout", timeout)
        return cls(math.inf, most=math.inf if timeout is None else max(0.0, timeout))


AT_ONCE: Final = Patience(unmet=0.0, gone=0.0, began=0.0)


def explain(path: str, error: OSError) -> LocksidecarError:
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
            return Denied(f"this process may not connect to {path}: {_permission(path)}")
    return Unavailable(f"cannot connect to the sidecar at {path}: {error.strerror or error}")


def _permission(path: str) -> str:
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


def _keep(results: list[T], function: Callable[..., T], *args: tuple[object]) -> None:
    """Appends the result of function to results, and does so even if a signal's handler raises meanwhile.

    Python runs handlers when a call is over, before the result is assigned to anything. A count or bytes
    that got lost there would break the stream. Nothing comes between map() and extend(). Because of map()
    each argument is a tuple of one.
    """
    results.extend(map(function, *args))


class Link:
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
        self._news: Any = None  # a poll() of the socket
        # Sockets that ended, to be closed by close_ended() when no thread waits on them any more: the number
        # of a closed file may be another file's a moment later.
        self._ended: list[Socket] = []
        self._clock = clock
        self._met = False  # has been served
        self._serving = False
        self._since = time.monotonic()  # of the last change between being served and not
        self._connected = 0.0  # when this connection was made
        self._haste = 0.0  # how long hasten() may still wait on it
        self._pauses = Pauses()  # since it was served
        self._error = OSError(errno.ENOENT, os.strerror(errno.ENOENT))  # of the last attempt
        self._live_until = -1  # of a failed session, once known

    # --- Connections ---

    def connect(self) -> bool:
        """Connects, if there is no connection, at once or not at all; tells whether there is one now."""
        session = self.session
        if session.stage is Stage.ADRIFT:
            self._follow()
            if self.sock is None:
                try:
                    sock = dial(session.path)
                except OSError as e:
                    if e.errno is None:  # a handler of a signal raised it
                        raise
                    self._error = e.with_traceback(None)
                    if not self._met and not starting(e):
                        error = explain(session.path, e)
                        session.fail(sentence(str(error)), type(error))
                    return False
                news = None
                if sys.platform != "win32" and _POLL is not None:
                    news = _POLL()
                    news.register(sock, select.POLLIN)
                # Commit:
                self._news = news
                self.sock = sock
            self._connected = time.monotonic()
            self._haste = GREETING_WAIT
            session.begin(self._clock())
            self.flush()
        return self.sock is not None

    def pause(self) -> float:
        """How long to wait between this attempt to connect and the next."""
        return self._pauses.next()

    def give_up_at(self, patience: Patience) -> float:
        """When a caller with that patience gives up, as things are now, by time.monotonic(); inf: never."""
        most = patience.began + patience.most
        if self._serving:
            return min(most, max(patience.began + patience.wait, self._since) + patience.grace)
        until = max(patience.began, self._since) + (patience.gone if self._met else patience.unmet)
        if self.sock is not None:
            until = max(until, self._connected + patience.grace)
        return min(most, until)

    def given_up(self, call: Call[Any]) -> LocksidecarError:
        """Why, as things are now, the caller of call gave up."""
        if isinstance(call, Confirm) and self._serving:
            return TookTooLong("no confirmation came in time; is Redis slow or away, or the sidecar stopped?")
        if self.sock is None:
            error = explain(self.session.path, self._error)
        else:
            error = Unavailable(
                f"the sidecar at {self.session.path} does not answer; is it stopped or overloaded?",
                may_have_happened=call.op == "force_release" and call.asked,
            )
        if isinstance(call, Confirm):
            return error
        what = f"{sentence(str(error))} This {call.op} is given up"
        if isinstance(error, Unavailable):
            return Unavailable(what, may_have_happened=error.may_have_happened or call.sent)
        return type(error)(what)

    def news(self) -> bool:
        """Whether there may be something for pump(). To ask costs less than a recv() that finds nothing."""
        session = self.session
        if session.stage is not Stage.SERVING or session.unfinished():
            return True
        return self._news is None or bool(self._news.poll(0))

    def pump(self) -> None:
        """Reads all that has arrived, and processes it. If it is interrupted it is called again."""
        session = self.session
        if session.unfinished():
            session.process(self._clock())
        while self.sock is not None and session.stage > Stage.ADRIFT:
            try:
                _keep(session.arrived, self.sock.recv, (_CHUNK,))
            except BlockingIOError:
                break
            except _ENDED:
                self._lose()
                break
            size = sum(map(len, session.arrived))
            session.process(self._clock())
            if size == 0:
                self._lose()
            elif size < _CHUNK:
                break
        if session.stage is Stage.ADRIFT or self._serving is not (session.stage is Stage.SERVING):
            self._follow()

    def flush(self) -> bool:
        """Sends what can be sent without waiting; tells whether that was all."""
        session = self.session
        sent: list[int] = []
        while session.unsent and self.sock is not None:
            sent.clear()
            try:
                _keep(sent, self.sock.send, (session.unsent,), _FLAGS)
            except BlockingIOError:
                return False
            except _ENDED:
                self.pump()  # the sidecar may have said why
                self._lose()
            finally:
                if sent:  # no call here: before it returned a handler might raise
                    del session.unsent[: sent[0]]
        return True

    def hasten(self) -> None:
        """Goes on with a greeting, and waits for it, though not for long over all of its calls."""
        began = time.monotonic()
        until = began + self._haste
        while (sock := self.sock) is not None and self.session.stage in (Stage.GREETING, Stage.CLAIMING):
            left = until - time.monotonic()
            if left <= 0:
                break
            wait([sock], [sock] if self.session.unsent else [], left)
            self.pump()
            self.flush()
        self._haste -= time.monotonic() - began

    def _lose(self) -> None:
        """The connection has ended."""
        if self.session.stage is Stage.GREETING:
            self._error = OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self.session.end(self._clock())
        self._follow()

    def _follow(self) -> None:
        """Keeps up with the session's stage. If it is interrupted it is called again."""
        stage = self.session.stage
        if stage is Stage.ADRIFT and self.sock is not None:
            self._ended.append(self.sock)
            self.sock = None
        serving = stage is Stage.SERVING
        if self._serving is not serving:
            since = time.monotonic()
            pauses = Pauses() if serving else self._pauses
            # Commit:
            self._met = self._met or serving
            self._pauses = pauses
            self._since = since
            self._serving = serving

    def close_ended(self) -> None:
        while self._ended:
            self._ended[-1].close()
            self._ended.pop()

    # --- The end ---

    def settle(self) -> bool:
        """Closes the socket of a failed session if its holds cannot be believed in; tells whether it is closed."""
        session = self.session
        if self.closed or session.stage is not Stage.OVER:
            return self.closed  # as long as bye has to be said it is not
        if session.live and self.sock is not None:
            if self._live_until < 0:
                self._live_until = session.live_until()
            if self._clock() < self._live_until:
                return False
        self.closed = True
        self.close_ended()
        if self.sock is not None:
            self.sock.close()
        return True

    def disown(self) -> None:
        """In a forked child: gives up this process's copies of the sockets, and only that."""
        self.session.inherited = True
        self.session.fail("This process was forked; the connection is its parent's.")
        self.closed = True
        sock, self.sock = self.sock, None
        for inherited in (sock, *self._ended):
            if inherited is not None and inherited.fileno() >= 0:
                os.close(inherited.detach())
