"""What a forked child must do with what it inherited: everything of the parent's is the parent's."""

from __future__ import annotations

import os
import sys
from typing import Protocol
from weakref import WeakSet


class Inheritable(Protocol):
    def after_fork_in_child(self) -> None:
        """Forgets what belongs to the parent, without touching what the parent shares.

        It runs in the child's only thread. Locks may be held by threads that do not exist here.
        """


_registered: WeakSet[Inheritable] = WeakSet()


def register(inheritable: Inheritable) -> None:
    _registered.add(inheritable)


def _after_fork_in_child() -> None:
    for inheritable in list(_registered):
        inheritable.after_fork_in_child()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
