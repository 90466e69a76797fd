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
    """Watches one acquire without an answer.

    ::

                  look()                           Redis serves
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
        if self._grants != session.grants:  # Redis has served another acquire; what was asked before does not count
            self._ping, self._grants = None, session.grants
        ping = self._ping
        if (
            session.warned_after == session.grants or session.stage is not SERVING
        ):  # without a connection, the call's timeouts end it
            return now + self._delay
        if ping is None:
            ping = ping_call()
            try:
                session.submit(ping, clock)
            except LocksidecarError:
                return math.inf  # the acquire fails, too
            self._ping, self._asked_at = ping, now
            return now + _LOOK
        if not ping.done and now - self._asked_at < _ASK_PATIENCE:
            return now + _LOOK
        if ping.done:
            self._ping = None
            self._delay *= 2
            answer = ping.answer
            if not isinstance(answer, protocol.PingOK) or answer.redis == "ok":  # other owners have the lock
                return now + self._delay
            what = "the lock %r is waited for, because Redis does not serve: %s"
            record: _log.Record = (_log.WARNING, what, (self._name, answer.redis))
        else:
            what = "the lock %r is waited for, and the sidecar at %s does not answer; is it stopped?"
            record = (_log.WARNING, what, (self._name, session.path))
        # Commit:
        session.warned_after = self._grants
        session.log += [record]
        return math.inf
