"""Connects a Session to the sidecar, over one socket after another. Nothing here waits, but for finish_greeting()."""

from __future__ import annotations

import _socket
import errno
import math
import os
import random
import select
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ._calls import UNREPEATABLE, Call, Confirm, check_number
from ._core import DISCONNECTED, ENDED, SERVING, Session, Stage
from ._errors import BadRequest, ConfirmTimeout, Denied, LocksidecarError, Unavailable, Unsupported, sentence

T = TypeVar("T")

DEFAULT_SOCKET: Final = "/run/locksidecar/locksidecar.sock"

# All of these are seconds.
# How long a call waits for a sidecar to listen, if none has served this client yet.
CONNECT_WAIT: Final = 2.0
# The same, if one has: it is more likely to come back.
RECONNECT_WAIT: Final = 10.0
# How much later than due an answer may come. After that the sidecar counts as stopped.
ANSWER_GRACE: Final = 5.0
# The same for an acquire with a timeout: its caller has said how long it may take.
ACQUIRE_GRACE: Final = 1.0
# How long finish_greeting() may block an event loop.
GREETING_WAIT: Final = 1.0
# How long close() waits for the answer to bye.
BYE_WAIT: Final = 1.0

_MAX_PATH: Final = 107  # bytes of the path of a socket
_SOL_SOCKET: Final = socket.SOL_SOCKET
_SO_COOKIE: Final = 57  # asm-generic/socket.h; the socket module does not have it

_RECV_SIZE: Final = 65_536
_RECV_SIZES: Final = (_RECV_SIZE,)  # for map()
# Used only for polls that hardly wait, so it does not matter if monkey patching replaces select.poll later. None:
# eventlet has removed it.
_POLL: Final = getattr(select, "poll", None)
# No SIGPIPE: a program that has the default handler must not die because the sidecar died.
SEND_FLAG: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0)
_SEND_FLAGS: Final = (SEND_FLAG,)  # for map()

# What recv() and send() raise when the sidecar has closed the connection. Another OSError may mean that there is no
# memory, or that a signal handler raised a TimeoutError. Closing the socket then would release locks that are held.
PEER_CLOSED: Final = (ConnectionResetError, BrokenPipeError)


def require_linux() -> None:
    """Raises Unsupported on other systems: the package can be imported there, but no sidecar runs there."""
    if sys.platform != "linux":
        raise Unsupported(
            f"the sidecar runs on Linux only, and this program runs on {sys.platform}; "
            "run it on a Linux host or in a Linux container, beside a sidecar"
        )


def socket_path(path: str | os.PathLike[str] = "") -> str:
    """Returns path; if it is empty, $LOCKSIDECAR_SOCKET; if that is empty, the default. It is made absolute."""
    path = os.fspath(path) or os.environ.get("LOCKSIDECAR_SOCKET", "") or DEFAULT_SOCKET
    scheme, is_url, _ = path.partition("://")
    if is_url and scheme.isalnum():
        # Without the rest of the URL, which may have a password.
        raise BadRequest(
            f"{scheme}://… is not the path of a socket: pass the path of the sidecar's socket, such as "
            f"{DEFAULT_SOCKET}, or nothing. The sidecar connects to Redis: its setting redis has the URL"
        )
    if len(os.fsencode(path)) > _MAX_PATH:
        raise BadRequest(f"the path of a socket may have at most {_MAX_PATH} bytes: {path}")
    return _absolute(path)


def _absolute(path: str) -> str:
    """The path from the root, so that a client connects again after a chdir(). A path that is too long stays."""
    if os.path.isabs(path) or path.startswith("\0"):
        return path
    try:
        absolute = os.path.join(os.getcwd(), path)
    except OSError:  # the directory was removed
        return path
    return absolute if len(os.fsencode(absolute)) <= _MAX_PATH else path


class Socket(_socket.socket):
    """A socket that is closed when it is garbage collected, without a ResourceWarning.

    A client may live as long as its process, and does not have to be closed. The base class is the one in C: the class
    of the socket module makes a socket in several steps, between which a signal handler may raise, and monkey patching
    replaces it.

    Other code may close the descriptor, as a daemon does that closes all of them when it starts. The number may then be
    that of another file. So is_own() comes before each send, recv and close.
    """

    _cookie: bytes | None = None  # of the kernel, for this socket only; None: not known yet; b"": it gives none
    _inode: tuple[int, int] | None = None  # takes three times as long to read

    def identify(self) -> None:
        """To be called when the socket is made."""
        try:
            self._cookie = self.getsockopt(_SOL_SOCKET, _SO_COOKIE, 8)
        except OSError:  # Linux before 4.12, gVisor
            status = os.fstat(self.fileno())
            self._inode = status.st_dev, status.st_ino
            self._cookie = b""

    def is_own(self) -> bool:
        """Whether the descriptor still refers to this socket."""
        try:
            if self._cookie:
                return self.getsockopt(_SOL_SOCKET, _SO_COOKIE, 8) == self._cookie
            status = os.fstat(self.fileno())
        except OSError:
            return False
        return self._cookie is None or (status.st_dev, status.st_ino) == self._inode

    def close(self) -> None:
        if self.is_own():
            super().close()
        else:
            self.detach()

    def __del__(self) -> None:
        self.close()


def dial(path: str) -> Socket:
    """Connects, or raises OSError, without waiting: a connect() to a Unix socket ends at once."""
    if sys.platform != "linux":
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    sock = Socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.connect(path)
        sock.identify()
    except BaseException:
        sock.close()
        raise
    return sock


def socket_pair() -> tuple[Socket, Socket]:
    """Two connected sockets, which do not wait."""
    if sys.platform != "linux":
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    pair = _socket.socketpair(socket.AF_UNIX, kind)
    ends = []
    for sock in pair:
        end = Socket(socket.AF_UNIX, kind, 0, sock.fileno())
        sock.detach()
        end.identify()
        ends.append(end)
    return ends[0], ends[1]


def may_be_starting(error: OSError) -> bool:
    """Whether the error can mean that the sidecar is starting, or that many clients connect at once."""
    return error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)


class Backoff:
    """The delay between attempts to connect. It grows, and is random so that clients do not synchronize."""

    def __init__(self) -> None:
        self._delay = 0.0

    def next(self) -> float:
        """Seconds."""
        delay = self._delay * random.uniform(0.5, 1.0)
        self._delay = min(max(self._delay * 1.5, 0.005), 0.1)
        return delay


class HasFileno(Protocol):
    def fileno(self) -> int: ...


# What poll() returns: descriptors with events.
Ready: TypeAlias = "list[tuple[int, int]]"


def wait_ready(reads: Sequence[HasFileno], writes: Sequence[HasFileno], seconds: float) -> Ready:
    """Waits until one of reads is readable, or one of writes is writable, or the seconds have passed.

    A closed file counts as readable: its owner has to notice that it was closed. Returns the descriptors of the files
    that are ready, without the events where there is no poll().

    The functions are looked up at each call, because monkey patching may replace them at any time: gevent installs its
    own poll(); eventlet removes poll() and installs its own select().
    """
    if sys.platform != "win32" and hasattr(select, "poll"):
        poll = select.poll()
        for file in reads:
            fd = file.fileno()
            if fd < 0:
                return []
            poll.register(fd, select.POLLIN | (select.POLLOUT if file in writes else 0))
        return poll.poll(seconds * 1000)
    if any(file.fileno() < 0 for file in reads):
        return []
    try:
        ready, _, _ = select.select(reads, writes, [], seconds)
    except OSError as e:
        if e.errno != errno.EBADF:
            raise
        return [(file.fileno(), 0) for file in reads]
    return [(file.fileno(), 0) for file in ready]


class ReusedPoll:
    """wait_ready() for files that stay the same, and without writes: makes a poll() for them once.

    One frame at a time may wait in it. A poll() that is in use refuses a second wait.
    """

    __slots__ = ("_files", "_made_by", "_poll")

    def __init__(self) -> None:
        self._files: tuple[HasFileno, ...] = ()
        self._made_by: object = None  # what select.poll was: monkey patching may replace it at any time
        self._poll: Any = None

    def wait(self, reads: tuple[HasFileno, ...], seconds: float) -> Ready:
        make = getattr(select, "poll", None)
        if make is None or sys.platform == "win32":
            return wait_ready(reads, [], seconds)
        for file in reads:
            if file.fileno() < 0:
                return []
        if self._made_by is not make or self._files != reads:
            poll = make()
            for file in reads:
                poll.register(file, select.POLLIN)
            # Commit:
            self._poll = poll
            self._files = reads
            self._made_by = make
        ready: Ready = self._poll.poll(seconds * 1000)
        return ready


@dataclass(slots=True)
class Timeouts:
    """How long one call waits, in seconds."""

    answer: float = 0.0  # for its answer, while a sidecar serves the session
    grace: float = ANSWER_GRACE  # for an answer that is late
    no_server: float = CONNECT_WAIT  # for a sidecar, if none has served the client yet
    reconnect: float = RECONNECT_WAIT  # for a sidecar, if one has
    total: float = math.inf  # for all of these together
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def for_acquire(cls, timeout: float | None) -> Timeouts:
        if timeout is None:
            return cls(math.inf)
        # Callers must not notice a short restart, so an acquire that does not wait for the lock waits for the sidecar.
        # It waits no longer for a sidecar that is stopped than for one that does not listen.
        return cls(
            timeout,
            grace=max(CONNECT_WAIT - timeout, ACQUIRE_GRACE),
            no_server=min(timeout, CONNECT_WAIT),
            reconnect=min(max(timeout, CONNECT_WAIT), RECONNECT_WAIT),
        )

    @classmethod
    def for_confirm(cls, timeout: float | None) -> Timeouts:
        """A timeout below 0 has passed and is no error: the lock must be released in any case."""
        if timeout is not None:
            check_number("timeout", timeout)
        return cls(math.inf, total=math.inf if timeout is None else max(0.0, timeout))


NO_WAIT: Final = Timeouts(no_server=0.0, reconnect=0.0, started=0.0)


def _is_another_file(path: str) -> bool:
    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def connect_error(path: str, error: OSError) -> LocksidecarError:
    match error.errno:
        case errno.ENOENT:
            return Unavailable(
                f"no sidecar: there is no socket {path}. Is locksidecar running on this host? "
                "If it listens elsewhere, set LOCKSIDECAR_SOCKET or pass its path to connect()"
            )
        case errno.ECONNREFUSED if _is_another_file(path):
            return Unavailable(f"{path} is no socket. Remove this file: a sidecar that runs makes its socket again")
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
    try:
        status = os.stat(path)
    except OSError:
        return f"it may not search the directory {os.path.dirname(path)}"
    return socket_permission_hint(status.st_mode, status.st_uid, status.st_gid, {os.getegid(), *os.getgroups()})


def socket_permission_hint(mode: int, uid: int, gid: int, groups: set[int]) -> str:
    """What to do if a process in groups may not connect to a socket. A connect() needs the permission to write."""
    shown = f"the socket's mode is {mode & 0o777:04o}"
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and gid in groups):
        return f"{shown}, which permits it, so a security module of the system (AppArmor, SELinux) forbids it"
    if not mode & stat.S_IWGRP:
        user = _user_name(uid)
        return f"run it as the user {user}, or change the setting socket_mode of the sidecar ({shown})"
    if gid == 0:
        return f"set socket_group of the sidecar to a group of this process ({shown}, its group {_group_name(gid)})"
    return f"run it as a member of the group {_group_name(gid)} ({shown})"


def _user_name(uid: int) -> str:
    if sys.platform == "win32":
        return ""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    if sys.platform == "win32":
        return ""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


class Availability(IntEnum):
    """Whether a sidecar serves the session. It decides which of the Timeouts applies to a call.

    ::

                 Stage.SERVING              connection lost
        UNKNOWN ───────────────► SERVING ───────────────────► AWAY
                                    ▲                           │
                                    └────── Stage.SERVING ──────┘
    """

    UNKNOWN = 0  # no sidecar has served this session yet
    SERVING = 1  # one serves it
    AWAY = 2  # one has served it, and may come back


_SERVES: Final = Availability.SERVING


class Transport:
    """Moves the bytes of a session over a non-blocking socket; after a disconnect, over the next one.

    Python runs signal handlers when a call returns, before its result is assigned. A count or bytes that are dropped
    there would corrupt the stream. No handler runs between map() and extend(), so `results.extend(map(recv, sizes))`
    keeps the result even if a handler raises.

    Invariant: the connection of a session is not closed while a holder may believe in one of its holds, because the
    sidecar releases the locks of a session when the client closes the connection. After a failure the socket stays
    open, unused, until the last such hold is released or its deadline has passed.
    """

    def __init__(self, session: Session, clock: Callable[[], int]) -> None:
        require_linux()
        self.session = session
        self.closed: bool = False
        self.sock: Socket | None = None
        self._poll: Any = None  # a poll() of the socket
        # Disconnected sockets. close_ended_sockets() closes them when no thread polls them any more: the number of a
        # closed file may be reused at once.
        self._ended_sockets: list[Socket] = []
        self._clock = clock
        self._availability = Availability.UNKNOWN
        self._since = time.monotonic()  # of the last change of availability
        self._connected_at = 0.0  # of the current connection
        self._greeting_budget = 0.0  # how long finish_greeting() may still block on the current connection
        self._backoff = Backoff()  # a new one each time a sidecar serves
        self._last_error = OSError(errno.ENOENT, os.strerror(errno.ENOENT))  # of the last attempt to connect
        self._last_deadline: int | None = None  # of the holds of a failed session; None: not computed

    # --- Connections ---

    def connect(self) -> bool:
        """Connects without waiting, if there is no connection. Returns whether there is one now."""
        session = self.session
        if session.stage is Stage.DISCONNECTED:
            self._follow_stage()
            if self.sock is None:
                try:
                    sock = dial(session.path)
                except OSError as e:
                    if e.errno is None:  # a signal handler raised it
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
        """When a call with these timeouts expires, by time.monotonic(); inf: never. Depends on the availability."""
        end = timeouts.started + timeouts.total
        if self._availability is _SERVES:
            if end == math.inf == timeouts.answer:
                return end
            return min(end, max(timeouts.started + timeouts.answer, self._since) + timeouts.grace)
        known = self._availability is not Availability.UNKNOWN
        until = max(timeouts.started, self._since) + (timeouts.reconnect if known else timeouts.no_server)
        if self.sock is not None:
            until = max(until, self._connected_at + timeouts.grace)
        return min(end, until)

    def timeout_error(self, call: Call[Any]) -> LocksidecarError:
        """The error for the caller of call, which has expired."""
        if isinstance(call, Confirm) and self._availability is Availability.SERVING:
            return ConfirmTimeout("no confirmation came in time; is Redis slow or unreachable, or the sidecar stopped?")
        if self.sock is None:
            error = connect_error(self.session.path, self._last_error)
        else:
            other = ", or another program than locksidecar" if self._availability is Availability.UNKNOWN else ""
            error = Unavailable(
                f"the sidecar at {self.session.path} does not answer; is it stopped or overloaded{other}?",
                may_have_happened=call.op in UNREPEATABLE and call.may_have_been_read,
            )
        if isinstance(call, Confirm):
            return error
        what = call.with_outcome(sentence(str(error)), "is given up")
        if isinstance(error, Unavailable):
            return Unavailable(what, may_have_happened=error.may_have_happened or call.sent_before)
        return type(error)(what)

    def readable(self) -> bool:
        """Whether receive() may have something to do. This costs less than a recv() that finds nothing.

        If it returns False, the socket is verified.
        """
        session = self.session
        sock = self.sock
        if session.stage is not SERVING or session.has_work() or self._poll is None or sock is None:
            return True
        return not sock.is_own() or bool(self._poll.poll(0))

    def verify(self) -> None:
        """Notices that other code has closed the socket, whose number may be that of another file now.

        To the sidecar that was a disconnect, so to this client, too.
        """
        session = self.session
        if self.sock is not None and session.stage > DISCONNECTED and not self.sock.is_own():
            session.on_descriptor_closed(self._clock())
            self._follow_stage()

    def receive(self) -> None:
        """Reads and processes everything that has arrived. If it is interrupted, it is called again."""
        session = self.session
        self.verify()
        size = _RECV_SIZE
        while size == _RECV_SIZE:
            size = -1  # nothing was read
            if self.sock is not None and session.stage > DISCONNECTED:
                try:
                    session.received.extend(map(self.sock.recv, _RECV_SIZES))
                    size = len(session.received[-1])
                except BlockingIOError:
                    pass
                except OSError as e:
                    if not self._has_ended(e):
                        raise
                    size = 0
            session.process(self._clock())
            if size == 0:
                self._on_disconnected()
        served = self._availability is _SERVES
        if session.stage is DISCONNECTED or served is not (session.stage is SERVING):
            self._follow_stage()

    def receive_within(self, seconds: float) -> None:
        """Waits until something arrives, or the seconds have passed, and processes what has arrived.

        Under monkey patching, too, it blocks its thread: the socket waits in C, and lets no other greenlet run.
        """
        sock = self.sock
        if sock is not None and sock.is_own():
            sock.settimeout(seconds)
            try:
                sock.recv(1, socket.MSG_PEEK)
            except OSError:  # also if the seconds have passed
                pass
            finally:
                sock.settimeout(0.0)
        self.receive()

    def flush(self) -> bool:
        """Sends what can be sent without waiting. Returns whether nothing is left.

        The caller has just called readable(), receive() or verify(): nothing is sent into another file.
        """
        session = self.session
        while session.unsent and self.sock is not None:
            sent: list[int] = []
            try:
                sent.extend(map(self.sock.send, (session.unsent,), _SEND_FLAGS))
            except BlockingIOError:
                return False
            except OSError as e:
                if not self._has_ended(e):
                    raise
                self.receive()  # the sidecar may have sent the reason
                self._on_disconnected()
            finally:
                if sent:  # no call here: a handler could raise before it returned
                    del session.unsent[: sent[0]]
        if session.stage is SERVING or session.stage is ENDED:  # else a release is sent later, or not claimed
            del session.unsent_releases[:]
        return True

    def finish_greeting(self) -> None:
        """Waits for the handshake. All waits on one connection together take GREETING_WAIT at most."""
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

    def _has_ended(self, error: OSError) -> bool:
        """Whether error means that the sidecar has closed the connection, or that the socket was closed here.

        The interpreter closes a socket that is collected together with its client and its event loop. Other code may
        close the descriptor.
        """
        return isinstance(error, PEER_CLOSED) or (self.sock is not None and not self.sock.is_own())

    def _on_disconnected(self) -> None:
        """The connection has ended."""
        if self.session.stage is Stage.GREETING:
            self._last_error = OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self.session.on_disconnected(self._clock())
        self._follow_stage()

    def _follow_stage(self) -> None:
        """Derives the socket and the availability from the stage of the session.

        Idempotent: if it is interrupted, it is called again.
        """
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
        """Closes the socket of an ended session, unless a hold is still valid. Returns whether it is closed."""
        session = self.session
        if self.closed or session.stage is not Stage.ENDED:
            return self.closed
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
        """Called in a forked child: closes this process's copies of the sockets. The parent's stay open."""
        self.session.inherited = True
        self.session.fail("This process was forked; the connection is its parent's.")
        self.closed = True
        sock, self.sock = self.sock, None
        for inherited in (sock, *self._ended_sockets):
            if inherited is not None:
                inherited.close()
