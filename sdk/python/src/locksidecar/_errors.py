"""What can go wrong.

::

    LocksidecarError
    ├── LockTimeout      (TimeoutError)     the wait ended: another owner holds the lock
    ├── LockLost                            the lock was held and then lost: .name, .reason
    ├── Unconfirmed                         released, but not known to be released in Redis: .name, .free_within
    ├── NotHeld          (RuntimeError)     released twice, or never acquired, or not by this process
    ├── Deadlock         (RuntimeError)     waiting would never end: threads or processes wait in a circle
    ├── Unavailable      (ConnectionError)  no sidecar, or no Redis behind it: .may_have_happened
    ├── Denied           (PermissionError)  the socket, Redis's ACL, or another user's lock
    ├── LimitExceeded                       too many sessions, holds or waiters
    ├── BadRequest       (ValueError)       a name or a duration that cannot be
    ├── Unsupported                         this sidecar lacks the request or this version, or this is not Linux
    ├── ClientClosed     (RuntimeError)     the client was closed before
    └── ProtocolError                       the sidecar sent what it must not

The class in parentheses is a base class too, so that code which knows only the standard library
catches what it expects. Every message says what happened and what to do about it.
"""

from __future__ import annotations

import sys


class LocksidecarError(Exception):
    """Base of everything that this package raises on its own account.

    code is the protocol's word for it, if the sidecar said it, else "".
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class LockTimeout(LocksidecarError, TimeoutError):
    """The wait ended before the lock was free. Nothing is held, nothing is waited for any more."""


class LockLost(LocksidecarError):
    """The lock was held, and ended without a release: what it guarded may have been done by others too.

    reason is one of

    - "expired": the deadline passed; a fixed lease ended, or Redis could not be reached in time to renew;
    - "deleted": the key vanished from Redis;
    - "stolen": the owner field in the key is another one;
    - "forced": an operator ended it;
    - "max_hold": max_hold passed;
    - "forgotten": the sidecar was restarted and knows nothing of it;
    - "closed": this client was closed while the lock was held.
    """

    def __init__(self, message: str, *, name: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason


class Unconfirmed(LocksidecarError):
    """The lock is released here, but there is no confirmation that Redis has executed the release.

    Another host may still find the lock taken, until its lease has ended in Redis. Nothing needs to be cleaned
    up, and nothing that was done under the lock is in doubt.

    name is the lock's. free_within is the time until the lease ends, in seconds; 0.0 if it has ended already.
    __cause__ is the reason: TimeoutError (it took too long), Denied (Redis refused the release), Unsupported (the
    sidecar is older than this client: upgrade it), Unavailable (no sidecar answered for too long),
    LimitExceeded, ClientClosed, or another LocksidecarError.
    """

    def __init__(self, message: str, *, code: str = "", name: str = "", free_within: float = 0.0) -> None:
        super().__init__(message, code=code)
        self.name = name
        self.free_within = free_within


class NotHeld(LocksidecarError, RuntimeError):
    """What should be released or checked is not held: it was released before, or never was acquired here."""


class Deadlock(LocksidecarError, RuntimeError):
    """Waiting would close a circle of owners that wait for each other. The message names each step."""


class Unavailable(LocksidecarError, ConnectionError):
    """The sidecar cannot be reached, or cannot reach its Redis.

    may_have_happened tells whether the request may have been carried out. If it was an acquire, nothing is
    held: what it granted is released, as soon as there is a sidecar again.
    """

    def __init__(self, message: str, *, code: str = "", may_have_happened: bool = False) -> None:
        super().__init__(message, code=code)
        self.may_have_happened = may_have_happened


class Denied(LocksidecarError, PermissionError):
    """Not permitted: to use the socket, by Redis's ACL, or to end a lock of another user."""


class LimitExceeded(LocksidecarError):
    """A limit of the sidecar: too many sessions, holds or waiters. The message says which and how to raise it."""


class BadRequest(LocksidecarError, ValueError):
    """A name or a duration that cannot be. The message says which and why."""


class Unsupported(LocksidecarError):
    """The sidecar does not know the request or this client's protocol version, or this system is not Linux."""


class ClientClosed(LocksidecarError, RuntimeError):
    """The client was closed. Make a new one."""


class ProtocolError(LocksidecarError):
    """The sidecar sent what the protocol forbids. The connection is given up; locks are good to their deadlines."""


class ConfirmTimeout(LocksidecarError, TimeoutError):
    """The cause of an Unconfirmed whose timeout passed."""


def sentence(text: str) -> str:
    return text if text.endswith(("?", ".")) else f"{text}."


def add_note_about(exc: BaseException, also: LocksidecarError) -> None:
    """Adds to exc what else went wrong, without masking it."""
    if sys.version_info >= (3, 11) and not isinstance(exc, LockLost):
        exc.add_note(f"Also: {also}")
