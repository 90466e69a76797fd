"""The exceptions.

::

    LocksidecarError
    ├── LockTimeout      (TimeoutError)     the wait ended: another owner holds the lock, or others the permits
    ├── LockLost                            the lock was held and then lost: .name, .reason
    ├── Unconfirmed                         released, but Redis is not known to have executed it: .name, .free_within
    ├── NotHeld          (RuntimeError)     released twice, or never acquired, or not by this process
    ├── Deadlock         (RuntimeError)     the wait would never end: owners on this host wait for each other
    ├── Unavailable      (ConnectionError)  no sidecar answers, or it cannot reach Redis: .may_have_happened
    ├── Denied           (PermissionError)  no permission: for the socket, for the key in Redis, for another user's lock
    ├── LimitExceeded                       too many sessions, holds or waiters
    ├── BadRequest       (ValueError)       an invalid name, duration or number
    ├── Unsupported                         the sidecar does not know the request or this version, or this is not Linux
    ├── ClientClosed     (RuntimeError)     the client was closed before
    └── ProtocolError                       the sidecar violated the protocol

The class in parentheses is a base class, too, for code that catches the exceptions of the standard library only. Every
message says what happened and what to do about it.
"""

from __future__ import annotations

import sys
from typing import Literal, TypeAlias

LossReason: TypeAlias = Literal[
    "expired", "deleted", "stolen", "forced", "max_hold", "forgotten", "closed", "cut_short"
]
"""Why a hold was lost: see LockLost. A later sidecar may have others.

"closed" is of this client only. "cut_short" is of events and of Status only: the client ended its work because the lock
was about to be lost.
"""


class LocksidecarError(Exception):
    """The base class of all exceptions of this package.

    code is the error code of the protocol, if the sidecar sent one, else "".
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class LockTimeout(LocksidecarError, TimeoutError):
    """The timeout passed before the lock, or the permits, were free. Nothing is held, and nothing waits any more."""


class LockLost(LocksidecarError):
    """The hold ended without a release. Another owner may have used what the lock guards.

    reason is one of

    - "expired": the deadline passed; a fixed lease ended, or Redis could not be reached in time to renew;
    - "deleted": the key vanished from Redis;
    - "stolen": the key in Redis has another owner's field;
    - "forced": an operator ended the hold;
    - "max_hold": max_hold passed;
    - "forgotten": the sidecar was restarted and does not know the hold;
    - "closed": this client was closed while it held the lock, or other code of the process closed its descriptor.
    """

    def __init__(self, message: str, *, name: str = "", reason: LossReason | Literal[""] = "") -> None:
        super().__init__(message)
        self.name = name
        self.reason: LossReason | Literal[""] = reason


class Unconfirmed(LocksidecarError):
    """The lock is released here, but there is no confirmation that Redis has executed the release.

    Another host may still find the lock taken, until its lease ends in Redis. No cleanup is needed: the lock was held
    until the release.

    name is the name of the lock. free_within is the time until the lease ends, in seconds; 0.0 if it has ended.
    __cause__ is the reason: TimeoutError (the timeout passed), Denied (Redis refused the release), Unsupported (the
    sidecar is older than this client: upgrade it), Unavailable (no sidecar answered in time), LimitExceeded,
    ClientClosed, or another LocksidecarError.
    """

    def __init__(self, message: str, *, code: str = "", name: str = "", free_within: float = 0.0) -> None:
        super().__init__(message, code=code)
        self.name = name
        self.free_within = free_within


class NotHeld(LocksidecarError, RuntimeError):
    """The lock to be released or checked is not held: it was released before, or never acquired here."""


class Deadlock(LocksidecarError, RuntimeError):
    """The wait would close a cycle of owners that wait for each other. The message names each step."""


class Unavailable(LocksidecarError, ConnectionError):
    """The sidecar cannot be reached, or cannot reach its Redis.

    may_have_happened: whether the sidecar may have carried out the request. After an acquire the lock is not held in
    any case: if it was granted, it is released as soon as a sidecar listens again.
    """

    def __init__(self, message: str, *, code: str = "", may_have_happened: bool = False) -> None:
        super().__init__(message, code=code)
        self.may_have_happened = may_have_happened


class Denied(LocksidecarError, PermissionError):
    """No permission: for the socket, for the key in Redis (its ACL), or to end the hold of another user."""


class LimitExceeded(LocksidecarError):
    """A limit of the sidecar is reached: of sessions, holds or waiters. The message says which, and how to raise it."""


class BadRequest(LocksidecarError, ValueError):
    """An invalid name, duration or number. The message says which and why."""


class Unsupported(LocksidecarError):
    """The sidecar does not know the request or this client's protocol version, or this system is not Linux."""


class ClientClosed(LocksidecarError, RuntimeError):
    """The client was closed. Make a new one."""


class ProtocolError(LocksidecarError):
    """The sidecar violated the protocol. The session has failed; its locks stay valid until their deadlines."""


class ConfirmTimeout(LocksidecarError, TimeoutError):
    """The cause of an Unconfirmed: the timeout passed before the confirmation came."""


def sentence(text: str) -> str:
    """Returns text with a full stop, unless it ends a sentence already."""
    return text if text.endswith(("?", ".")) else f"{text}."


def add_note_about(exc: BaseException, also: LocksidecarError) -> None:
    """Adds a note about another error to exc (Python 3.11). A LockLost needs none."""
    if sys.version_info >= (3, 11) and not isinstance(exc, LockLost):
        exc.add_note(f"Also: {also}")
