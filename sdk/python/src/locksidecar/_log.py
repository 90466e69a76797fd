"""What the clients log, with the logger "locksidecar": losses, disconnects, and what became of a session after them."""

from __future__ import annotations

import logging
from typing import Final

logger: Final = logging.getLogger("locksidecar")

# Level, message and arguments. A Session makes them, and the I/O layer writes them when no lock of its own is held.
Record = tuple[int, str, tuple[object, ...]]

INFO: Final = logging.INFO
WARNING: Final = logging.WARNING


def write(records: list[Record]) -> None:
    """Writes records and removes them. Several threads may do that at once."""
    while records:
        try:
            level, message, arguments = records.pop(0)
        except IndexError:  # another thread was faster
            return
        logger.log(level, message, *arguments)
