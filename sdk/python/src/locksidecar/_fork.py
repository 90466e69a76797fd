"""Resets the clients in a forked child: their sessions and sockets belong to the parent."""

from __future__ import annotations

import mmap
import os
import sys
from typing import Final, Protocol
from weakref import WeakSet

# Linux: the kernel fills a page with zeros in a forked child after this advice.
_MADV_WIPEONFORK: Final = 18


class Inheritable(Protocol):
    def _after_fork_in_child(self) -> None:
        """Drops what belongs to the parent, and changes nothing that the parent shares.

        It runs in the only thread of the child. Locks may be held by threads that do not exist here.
        """


def _wiped_page() -> mmap.mmap | None:
    """A page that is empty in a forked child; None: the kernel does not have such pages."""
    if sys.platform != "linux":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_MADV_WIPEONFORK)
    except (OSError, ValueError):
        return None
    try:
        page.madvise(-1)  # an emulator that ignores advice accepts this one, too
    except (OSError, ValueError):
        return page
    return None


_page: Final = _wiped_page()
_process = os.getpid()


def process_id() -> int:
    """os.getpid(), without a system call.

    Not every fork runs the hooks of os.register_at_fork(): uWSGI forks in C. So a page that the kernel wipes tells a
    child from its parent.
    """
    global _process
    if _page is None:
        return os.getpid()
    if not _page[0]:
        _process = os.getpid()
        _page[0] = 1  # after _process: an interrupt in between must not leave that of the parent
    return _process


_registered: WeakSet[Inheritable] = WeakSet()


def register(inheritable: Inheritable) -> None:
    _registered.add(inheritable)


def _after_fork_in_child() -> None:
    global _process
    _process = os.getpid()
    for inheritable in list(_registered):
        inheritable._after_fork_in_child()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
