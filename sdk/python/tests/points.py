"""The points at which tests interrupt a client.

All of them are many, so a run without LOCKSIDECAR_LONG=1, which .ci/nightly sets, has a part. The part is fixed: a run
depends on the commit alone.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType

LONG = os.environ.get("LOCKSIDECAR_LONG") == "1"


def points(step: int, part: int = 0) -> Iterator[int]:
    """1, 2, 3, …; without LOCKSIDECAR_LONG every step-th of them. The parts 0 to step - 1 together are all of them."""
    return itertools.count(1) if LONG else itertools.count(1 + part % step, step)


def times(count: int, short: int) -> int:
    """How many random inputs a test tries: count, or short without LOCKSIDECAR_LONG."""
    return count if LONG else short


@contextlib.contextmanager
def profiled(profile: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Within the block, profile is called at each point at which the interpreter runs signal handlers.

    The garbage collector is off: a finalizer of a client of another test has such points, too.
    """
    gc.disable()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()
