"""Warns of a held lock that nothing refers to any more.

Such a lock stays held: only its holder, an operator or the end of the holder may free it.

A weak reference to each Held calls back when the Held is gone. A finalizer would be a Python function that runs for
each Held, also for those that were released, and an exception that a signal handler raises in a finalizer is dropped.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from . import _fork


class Released(Protocol):
    """An entry: what a Held releases."""

    def is_held(self) -> bool:
        """Whether it is known to be held, without a look at what has arrived."""

    @property
    def title(self) -> str: ...


# Referred to from here, a weak reference calls back also if its Held is part of a cycle of garbage.
_held: Final[dict[Released, weakref.ref[Any]]] = {}


def watch(held: object, entry: Released) -> None:
    """Warns when held is gone before release_was_called(entry)."""
    _held[entry] = weakref.ref(held, functools.partial(_on_dropped, entry, _fork.process_id()))


def release_was_called(entry: Released) -> None:
    _held.pop(entry, None)


# At the end of the interpreter, the globals of a module may be None.
def _on_dropped(
    entry: Released, process: int, _: object, is_finalizing: Callable[[], bool] = sys.is_finalizing
) -> None:
    if is_finalizing():
        return
    _held.pop(entry, None)
    if process != _fork.process_id() or not entry.is_held():
        return
    warnings.warn(
        f"{entry.title} is still held, and nothing refers to it any more: only the end of its lease, of this client or "
        "of this process releases it. Use a with block, or keep the Lock or the Permits and call release()",
        ResourceWarning,
        stacklevel=2,
    )
