"""Which handle a lock object releases, if many threads or tasks share the object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Generic, Protocol, TypeAlias, TypeVar

from ._core import Entry

# A with statement: the number and the code of the frame that executes it. The frame lives as long as the block, so no
# two blocks that have begun have one number. ExitStack enters a block in a frame that ends at once, and leaves it in a
# frame of other code.
Block: TypeAlias = "tuple[int, CodeType]"


def block_of(frame: FrameType) -> Block:
    return id(frame), frame.f_code


class Handle(Protocol):
    """What Handles needs of a Held."""

    @property
    def released(self) -> bool: ...

    _entry: Entry
    _scoped: bool  # the end of its block has not begun
    _block: Block | None


H = TypeVar("H", bound=Handle)


class Handles(Generic[H]):
    """The handles that were acquired through one lock object, in the order of their acquires.

    A scoped handle is that of a `with` block. Only the end of the block removes it: no other block takes it for its own
    from then on.

    A signal handler or another thread may use the lock object between any two calls here. So no method relies on what
    it has read before a call: it iterates over copies, and adds and removes a handle in one statement.
    """

    __slots__ = ("_any_owner", "_handles")

    def __init__(self, any_owner: bool) -> None:
        # Like a threading.Lock, a lock that is not re-entrant may be released by another owner.
        self._any_owner = any_owner
        self._handles: list[H] = []

    def __iter__(self) -> Iterator[H]:
        return iter(list(self._handles))

    def push(self, handle: H) -> None:
        for other in reversed(list(self._handles)):
            if not other.released:
                break  # those before it are looked at when it is released: a push takes no longer for many of them
            if not other._scoped:
                self.remove(other)
        self._handles.append(handle)

    def newest(self, owner: int) -> H | None:
        """The newest handle of owner that is not released."""
        for handle in reversed(self._of(owner)):
            if not handle.released:
                return handle
        return None

    def handle_to_release(self, owner: int) -> H | None:
        handle = self.newest(owner)
        if handle is None and self._any_owner:
            handle = _only([h for h in self if not h.released])
        return handle

    def handles_of_block(self, current_owner: Callable[[], int], frame: FrameType | None = None) -> list[H]:
        """The handles that end with the current `with` block: the block's own first; none if there is no block.

        If the body released the block's handle and acquired the lock again, as a threading.Condition does, the newer
        handle ends, too. The block of a generator may be ended by another owner than the one that began it. If several
        holds have a block then, because one was lost, the frame that executes the with statement tells them apart.
        """
        handles = list(self._handles)
        if len(handles) == 1:
            return handles if handles[0]._scoped else []
        own = self._of(current_owner())
        if own and own[-1]._scoped and not own[-1].released:
            return own[-1:]
        handle = next((h for h in reversed(own) if h._scoped), None)
        if handle is None:
            scoped = [h for h in self if h._scoped]
            if len(scoped) > 1 and frame is not None:
                scoped = [h for h in scoped if h._block == block_of(frame)] or scoped
            return scoped[-1:] if all(h._entry.hold is scoped[0]._entry.hold for h in scoped) else []
        if handle.released:
            within = own[own.index(handle) + 1 :]
            return [handle, *[h for h in within if not h.released][-1:]]
        return [handle]

    def remove(self, handle: H) -> None:
        """Removes handle, if it is still there."""
        try:  # noqa: SIM105
            self._handles.remove(handle)
        except ValueError:
            pass

    def _of(self, owner: int) -> list[H]:
        return [h for h in self if h._entry.hold.owner == owner]


def _only(handles: list[H]) -> H | None:
    return handles[0] if len(handles) == 1 else None
