"""The clock of the deadlines: Linux's CLOCK_BOOTTIME, which counts while the host is suspended and cannot be set."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Final

if sys.platform == "linux":
    boottime: Final[Callable[[], int]] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
else:
    boottime: Final[Callable[[], int]] = time.monotonic_ns  # never used for a deadline: connecting raises Unsupported

# The clocks of the sidecars in memory of this process (locksidecar.testing), by the paths of their sockets.
clocks: Final[dict[str, Callable[[], int]]] = {}


def clock_of(path: str) -> Callable[[], int]:
    """The clock of the deadlines that the sidecar at path sends."""
    return clocks.get(path, boottime)


def wall_time(boottime_ns: int) -> datetime:
    """A time of CLOCK_BOOTTIME as a time of the calendar, in UTC, as the wall clock of this host is set now."""
    return datetime.now(timezone.utc) + timedelta(microseconds=(boottime_ns - boottime()) / 1000)


def seconds(milliseconds: int) -> float | None:
    """None for the -1 of a key that does not expire."""
    return None if milliseconds < 0 else milliseconds / 1000
