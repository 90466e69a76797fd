"""The session's way to the sidecar: one socket after another. Sync and asyncio clients wait each in their way."""

from __future__ import annotations

import errno
import grp
import math
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ._core import Call, Confirm, Session, Stage
from ._errors import BadRequest, Denied, LocksidecarError, TookTooLong, Unavailable, sentence

T = TypeVar("T")

DEFAULT_SOCKET: Final = "/run/locksidecar/locksidecar.sock"

# How long a call puts up with a sidecar that is just starting, seconds: on a host where this client has not
# met one yet, …
CONNECT_WAIT: Final = 2.0
# … and after a connection, which makes it more likely that it comes back.
RESUME_WAIT: Final = 10.0
# How much later than due an answer may come before the sidecar is taken for stopped, seconds.
ANSWER_GRACE: Final = 5.0
# How long an event loop is kept waiting by who must know at once whether a lock is still held, seconds.
GREETING_WAIT: Final = 1.0
# How long close() waits for the sidecar to have heard, seconds.
BYE_WAIT: Final = 1.0

_CHUNK: Final = 65_536
# Without a signal: a program that dies of SIGPIPE shall not die because the sidecar did.
_FLAGS: Final = (socket.MSG_NOSIGNAL,)

# What recv() and send() raise when the other end is gone. No other OSError tells that: there may be no memory,
# or a signal's handler raised a TimeoutError. To take the connection for ended then, and close it, would give
# away locks that are believed to be held.
_ENDED: Final = (ConnectionResetError, BrokenPipeError)


def socket_path(path: str | os.PathLike[str] = "") -> str:
    """The path, or if it is empty $LOCKSIDECAR_SOCKET, or else the default."""
    path = os.fspath(path) or os.environ.get("LOCKSIDECAR_SOCKET", "") or DEFAULT_SOCKET
    if len(os.fsencode(path)) > 107:
        raise BadRequest(f"the path of a socket may have at most 107 bytes: {path}")
    return path


class Socket(socket.socket):
    """A socket that is closed when it is forgotten, without a ResourceWarning.

    A client may live as long as its process and need not be closed.
    """

    def __del__(self) -> None:
        self.close()


def dial(path: str) -> Socket:
    """Connects at once or not at all: OSError. On a Unix socket there is nothing to wait for."""
    sock = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def starting(error: OSError) -> bool:
    """Whether a sidecar that is just starting, or has many clients at once, explains the error."""
    return error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)


def pauses() -> Iterator[float]:
    """Seconds to wait between attempts to connect, so that the clients of a host do not come all at once."""
    yield 0.0
    pause = 0.005
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 1.5, 0.1)


@dataclass(slots=True)
class Patience:
    """How long one call puts up with what, in seconds from its beginning."""

    wait: float = 0.0  # for its answer, once asked
    grace: float = ANSWER_GRACE  # for an answer that is late
    unmet: float = CONNECT_WAIT  # with nobody who listens, as long as nobody ever has
    gone: float = RESUME_WAIT  # with nobody who listens any more
    most: float = math.inf  # with all of these together
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def to_acquire(cls, timeout: float | None) -> Patience:
        if timeout is None:
            return cls(math.inf)
        # A restart shall not be noticed, so even who does not wait for the lock puts up with a short one.
        return cls(timeout, unmet=min(timeout, CONNECT_WAIT), gone=min(max(timeout, CONNECT_WAIT), RESUME_WAIT))

    @classmethod
    def to_confirm(cls, timeout: float | None) -> Patience:
        """A timeout below 0 is no error, but one that has passed: the lock has to be released in any case."""
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
            return Unavailable(f"no sidecar: nobody listens on {path}. Is locksidecar running on this host?")
        case errno.EAGAIN:
            return Unavailable(f"the sidecar at {path} does not accept connections; is it stopped or overloaded?")
        case errno.EACCES | errno.EPERM:
            return Denied(f"this process may not connect to {path}: {_permission(path)}")
    return Unavailable(f"cannot connect to the sidecar at {path}: {error.strerror or error}")


def _permission(path: str) -> str:
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
    somebody may still believe in a hold: after a failure it stays open, unused, until the last such hold was
    released or its deadline passed.
    """

    def __init__(self, session: Session, clock: Callable[[], int]) -> None:
        self.session = session
        self.closed = False
        self.sock: Socket | None = None
        self._news = select.poll()  # of the socket, if there is one
        # Sockets that ended, to be closed by close_ended() when nobody waits on them any more: the number
        # of a closed file may be another file's a moment later.
        self._ended: list[Socket] = []
        # Read from the socket, but not taken in: whoever was interrupted while doing that left it to be done again.
        self.unheeded: list[bytes] = []
        self._clock = clock
        self._met = False  # has been served
        self._serving = False
        self._since = time.monotonic()  # of the last change between being served and not
        self._connected = 0.0  # when this connection was made
        self._haste = 0.0  # how long hasten() may still wait on it
        self._pauses = pauses()  # since it was served
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
                    self._error = e
                    if not self._met and not starting(e):
                        error = explain(session.path, e)
                        session.fail(sentence(str(error)), type(error))
                    return False
                news = select.poll()
                news.register(sock, select.POLLIN)
                self._news, self.sock = news, sock
            self._connected = time.monotonic()
            self._haste = GREETING_WAIT
            session.begin(self._clock())
            self.flush()
        return self.sock is not None

    def pause(self) -> float:
        """How long to wait between this attempt to connect and the next."""
        return next(self._pauses)

    def give_up_at(self, patience: Patience) -> float:
        """When who has that patience gives up, as things are now, by time.monotonic(); inf: never."""
        most = patience.began + patience.most
        if self._serving:
            return min(most, max(patience.began + patience.wait, self._since) + patience.grace)
        until = max(patience.began, self._since) + (patience.gone if self._met else patience.unmet)
        if self.sock is not None:
            until = max(until, self._connected + patience.grace)
        return min(most, until)

    def given_up(self, call: Call[Any]) -> LocksidecarError:
        """Why, as things are now, who waited for call gave up."""
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
        return self.session.stage is not Stage.SERVING or bool(self.unheeded or self._news.poll(0))

    def pump(self) -> None:
        """Reads what is there."""
        session = self.session
        read = self.unheeded
        while self.sock is not None and session.stage > Stage.ADRIFT:
            try:
                if not read:
                    _keep(read, self.sock.recv, (_CHUNK,))
                size = len(read[0])
                if size:
                    self._take(read)
            except BlockingIOError:
                break
            except _ENDED:
                size = 0
            except BaseException:
                if read and read[0] and session.stage is not Stage.GREETING:
                    self._take(read)
                raise
            read.clear()
            if size == 0:
                self._lose()
            elif size < _CHUNK:
                break
        if session.stage is Stage.ADRIFT or self._serving is not (session.stage is Stage.SERVING):
            self._follow()

    def _take(self, read: list[bytes]) -> None:
        session = self.session
        greeting = session.stage is Stage.GREETING and session.awaits_greeting()
        try:
            session.receive(read[0], self._clock())
        except BaseException:
            # Interrupted at an unknown point: which frames were heeded is not known, except that in a
            # greeting there is but one.
            if not greeting:
                session.fail("Reading from the sidecar was interrupted.")
                read.clear()
            elif not session.unheed():
                read.clear()
            raise
        read.clear()

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
        poll = select.poll()
        while (sock := self.sock) is not None and self.session.stage in (Stage.GREETING, Stage.CLAIMING):
            left = until - time.monotonic()
            if left <= 0:
                break
            poll.register(sock, select.POLLIN | (select.POLLOUT if self.session.unsent else 0))
            poll.poll(left * 1000)
            self.pump()
            self.flush()
        self._haste -= time.monotonic() - began

    def _lose(self) -> None:
        """The connection has ended."""
        self.session.end(self._clock())
        self._follow()

    def _follow(self) -> None:
        """Keeps up with the session's stage. Whoever was interrupted in it calls it again."""
        stage = self.session.stage
        if stage is Stage.ADRIFT and self.sock is not None:
            self.unheeded.clear()
            self._ended.append(self.sock)
            self.sock = None
        serving = stage is Stage.SERVING
        if self._serving is not serving:
            if serving:
                self._met = True
                self._pauses = pauses()
            self._since = time.monotonic()
            self._serving = serving

    def close_ended(self) -> None:
        while self._ended:
            self._ended[-1].close()
            self._ended.pop()

    # --- The end ---

    def settle(self) -> bool:
        """Closes the socket of a failed session if nobody can believe in its holds; tells whether it is closed."""
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
