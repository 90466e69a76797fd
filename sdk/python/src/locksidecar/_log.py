"""What the clients log, with the logger "locksidecar": losses, disconnects, and what became of a session after them."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Final

logger: Final = logging.getLogger("locksidecar")

# Level, message and arguments. A Session makes them, and the I/O layer writes them when no lock of its own is held.
Record = tuple[int, str, tuple[object, ...]]

INFO: Final = logging.INFO
WARNING: Final = logging.WARNING

# Seconds. A thread that shows a loss waits for as long while another one is logging it. A handler of the log that waits
# for a lock of that thread would else wait without end.
PATIENCE: Final = 5.0


class Writer:
    """Writes the records of a session that threads share, one at a time.

    Invariant: a record is in records, or writing is true, until the logger has returned from it. So when a thread that
    has read a loss from the session calls write(PATIENCE), the loss is in the log before it returns.

    A handler of the log may use the client: nothing of the session is locked meanwhile. On its own thread it writes the
    other records itself and waits for none.
    """

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.reset()

    def reset(self) -> None:
        """Also called in a forked child: the thread that was writing exists only in the parent."""
        self._lock = threading.RLock()
        self._writing = False  # a thread is inside of the logger

    def write(self, patience: float = 0.0) -> None:
        """Writes all records. Waits up to patience seconds while another thread writes; 0: that thread writes these."""
        while self._writing or self.records:
            locked: list[bool] = []
            try:
                # As in Transport: if a signal handler raises, locked says whether the lock is taken.
                if patience > 0 and not self._blocks_a_writer():
                    locked.extend(map(self._lock.acquire, (True,), (patience,)))
                else:
                    locked.extend(map(self._lock.acquire, (False,)))
                if not locked[0]:
                    return
                if not self.records:  # nothing is left; or this thread itself is writing
                    return
                self._write_locked()
            finally:
                if locked and locked[0]:
                    self._lock.release()
            # Another thread may have added a record, and found the lock taken.

    def _write_locked(self) -> None:
        outer = self._writing  # of the frame of this thread that this one has interrupted, or whose handler it is
        self._writing = True
        try:
            while self.records:
                # No call here: a signal handler that raised would drop the record.
                level, message, arguments = self.records[0]
                del self.records[0]
                logger.log(level, message, *arguments)
        finally:
            self._writing = outer

    def _blocks_a_writer(self) -> bool:
        """Whether this thread is inside of a handler of the log, for which the thread that writes may be waiting."""
        at: logging.Logger | None = logger
        while at is not None:
            for handler in at.handlers:
                is_owned = getattr(handler.lock, "_is_owned", None)
                if is_owned is not None and is_owned():
                    return True
            at = at.parent if at.propagate else None
        return False


def write(records: list[Record]) -> None:
    """Writes records and removes them, for a session of one thread."""
    while records:
        level, message, arguments = records[0]
        del records[0]
        logger.log(level, message, *arguments)


def report_error(message: str, *arguments: object) -> None:
    """Logs the exception that is being handled, in a background thread that must go on.

    If a handler of the log raises, this prints its exception, as logging.Handler.handleError() does.
    """
    try:
        logger.exception(message, *arguments)
    except Exception:
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()
