"""A socket and the session on it. Nothing here waits: sync and asyncio clients wait each in their way."""

from __future__ import annotations

import errno
import grp
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from . import _protocol as protocol
from ._core import Session
from ._errors import BadRequest, Denied, LocksidecarError, Unavailable, Unsupported

T = TypeVar("T")

DEFAULT_SOCKET: Final = "/run/locksidecar/locksidecar.sock"

# How long a connect puts up with a sidecar that is just starting, seconds.
CONNECT_WAIT: Final = 2.0
# How much later than due an answer may come before the sidecar is taken for stopped, seconds.
ANSWER_GRACE: Final = 5.0

_CHUNK: Final = 65_536


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
    """Seconds to wait between attempts to connect."""
    pause = 0.005
    while True:
        yield pause
        pause = min(pause * 1.5, 0.1)


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


def greeted(path: str, answer: protocol.HelloOK, asked: int, now: int) -> None:
    """asked, now: the clock of deadlines before the hello and after its answer."""
    if answer.v != protocol.VERSION:
        raise Unsupported(
            f"the sidecar at {path} (version {answer.version}) speaks protocol version {answer.v}, "
            f"this client {protocol.VERSION}: update the older of the two"
        )
    # The sidecar read its clock between the two. One of ours that is behind would let us believe for too long.
    if not asked - 1_000_000_000 <= answer.now_ns <= now:
        ahead = (answer.now_ns - now) / 1e9
        raise Unsupported(
            f"the clock of the sidecar at {path} (CLOCK_BOOTTIME) differs from ours by {ahead:g} s: "
            "run both in one time namespace"
        )


def _keep(results: list[T], function: Callable[..., T], *args: object) -> None:
    """Appends the result of function to results, and does so even if a signal's handler raises meanwhile.

    Python runs handlers when a call is over, before the result is assigned to anything. A count or bytes
    that got lost there would break the stream. Nothing comes between map() and extend().
    """
    results.extend(map(function, *[(a,) for a in args]))


class Link:
    """Moves a session's bytes over a non-blocking socket.

    The sidecar gives a session's locks away when its connection ends. So this end never closes it while
    somebody may still believe in a hold: after a failure it stays open, unused, until the last such hold
    was released or its deadline passed.
    """

    def __init__(self, sock: Socket, path: str, clock: Callable[[], int]) -> None:
        self.session = Session(path)
        self.closed = False
        self._sock = sock
        self._clock = clock
        self._ended = False  # by the sidecar
        self._live_until = -1  # of a failed session, once known

    def fileno(self) -> int:
        return self._sock.fileno()

    def pump(self) -> None:
        """Reads what is there."""
        session = self.session
        read: list[bytes] = []
        while session.failure is None:
            read.clear()
            try:
                _keep(read, self._sock.recv, _CHUNK)
                size = len(read[0])
                self._take(read)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            except BaseException:
                if read:
                    self._take(read)
                raise
            if size == 0:
                self._ended = True
                session.end()
            elif size < _CHUNK:
                return

    def _take(self, read: list[bytes]) -> None:
        try:
            self.session.receive(read.pop())
        except BaseException:
            # Interrupted at an unknown point: which frames were heeded is not known.
            self.session.fail("Reading from the sidecar was interrupted.")
            raise

    def flush(self) -> bool:
        """Sends what can be sent without waiting; tells whether that was all."""
        session = self.session
        sent: list[int] = []
        while session.unsent:
            sent.clear()
            try:
                # Without a signal: a program that dies of SIGPIPE shall not die because the sidecar did.
                _keep(sent, self._sock.send, session.unsent, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self.pump()  # the sidecar may have said why
                self._ended = True
                session.end()
            finally:
                if sent:  # no call here: before it returned a handler might raise
                    del session.unsent[: sent[0]]
        return True

    def settle(self) -> bool:
        """Closes the socket of a failed session if nobody can believe in its holds; tells whether it is closed."""
        session = self.session
        if self.closed or session.failure is None:
            return self.closed
        if session.live and not self._ended:
            if self._live_until < 0:
                self._live_until = session.live_until()
            if self._clock() < self._live_until:
                return False
        self.closed = True
        self._sock.close()
        return True

    def disown(self) -> None:
        """In a forked child: gives up this process's copy of the socket, and only that."""
        self.session.inherited = True
        self.session.fail("This process was forked; the connection is its parent's.")
        if not self.closed:
            self.closed = True
            os.close(self._sock.detach())
