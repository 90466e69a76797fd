"""Resets the clients in a forked child: their sessions and sockets belong to the parent."""

from __future__ import annotations

import os
import sys
from typing import Protocol
from weakref import WeakSet


class Inheritable(Protocol):
    def after_fork_in_child(self) -> None:
        """Drops what belongs to the parent, and changes nothing that the parent shares.

        It runs in the only thread of the child. Locks may be held by threads that do not exist here.
        """


_registered: WeakSet[Inheritable] = WeakSet()


def register(inheritable: Inheritable) -> None:
    _registered.add(inheritable)


def _after_fork_in_child() -> None:
    for inheritable in list(_registered):
        inheritable.after_fork_in_child()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
