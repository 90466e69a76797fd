"""Why an acquire waits: a warning in the log if Redis does not serve, or if the sidecar does not answer."""

from __future__ import annotations

import math
from typing import Any, Final

from . import _log
from . import _protocol as protocol
from ._calls import Call, ping_call
from ._core import SERVING, Session
from ._errors import LocksidecarError

# Seconds after which the sidecar is asked why an acquire waits; then after twice as many.
SLOW: Final = 2.0

# Seconds for which its answer is waited for, and between two looks for it.
_ASK_PATIENCE: Final = 2.0
_LOOK: Final = 0.1


class WaitWatch:
    """Watches one acquire without an answer. A client asks at most once in SLOW seconds, for all its acquires.

    ::

                  look()         Redis serves, or another acquire is WARNED
        WAITING ─────────► ASKING ──────────────────────────────────────► WAITING
                              │  Redis does not, or no answer in time
                              └─────────────────────────────────────────► WARNED
    """

    __slots__ = ("_asked_at", "_delay", "_grants", "_name", "_ping")

    def __init__(self, name: str) -> None:
        self._name = name
        self._delay = SLOW
        self._grants = 0
        self._ping: Call[Any] | None = None  # ASKING
        self._asked_at = 0.0

    def look(self, session: Session, now: float, clock: int) -> float:
        """Returns when to look again, by time.monotonic(). The caller sends what is unsent, and writes the log."""
        ping = self._ping
        if ping is None:
            if session.warned_after == session.grants or session.stage is not SERVING:  # the call's timeouts end it
                return now + self._delay
            if now - session.asked_at < SLOW:  # for another acquire
                return self._later(now)
            self._grants = session.grants
            self._asked_at = session.asked_at = now
            ping = ping_call()
            try:
                session.submit(ping, clock)
            except LocksidecarError:
                if session.failure is not None:
                    return math.inf  # the acquire fails, too
                return self._warn(session, self._silence(session))  # nothing was read for long: too much is unsent
            self._ping = ping
            return now + _LOOK
        if not ping.done and now - self._asked_at < _ASK_PATIENCE:
            return now + _LOOK
        self._ping = None
        # Meanwhile Redis has served another acquire, or the warning about one was logged.
        if session.grants != self._grants or session.warned_after == self._grants:
            return self._later(now)
        if not ping.done:
            return self._warn(session, self._silence(session))
        if not isinstance(ping.answer, protocol.PingOK) or ping.answer.redis == "ok":  # other owners have the lock
            return self._later(now)
        what = "the lock %r is waited for, because Redis does not serve: %s"
        return self._warn(session, (_log.WARNING, what, (self._name, ping.answer.redis)))

    def _later(self, now: float) -> float:
        self._delay *= 2
        return now + self._delay

    def _silence(self, session: Session) -> _log.Record:
        what = "the lock %r is waited for, and the sidecar at %s does not answer; is it stopped?"
        return _log.WARNING, what, (self._name, session.path)

    def _warn(self, session: Session, record: _log.Record) -> float:
        session.warned_after = self._grants
        session.log += [record]
        return math.inf
