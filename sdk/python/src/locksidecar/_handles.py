"""Whose turn it is when a lock object, which many threads or tasks share, is told to release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Handle(Protocol):
    """What a lock's acquire hands out, as far as Handles must know it."""

    @property
    def released(self) -> bool: ...

    _scoped: bool


H = TypeVar("H", bound=Handle)


class Handles(Generic[H]):
    """Which handles of one lock object its owners have, each owner's in the order of its acquires.

    Scoped handles are those of `with` blocks: the end of the block takes them, and nothing else does.
    """

    __slots__ = ("_any_owner", "_stacks")

    def __init__(self, any_owner: bool) -> None:
        # Like a threading.Lock, one that is not re-entrant may be released by who did not acquire it.
        self._any_owner = any_owner
        self._stacks: dict[int, list[H]] = {}

    def __iter__(self) -> Iterator[H]:
        for stack in list(self._stacks.values()):
            yield from list(stack)

    def push(self, owner: int, handle: H) -> None:
        stack = self._stacks.setdefault(owner, [])
        while stack and stack[-1].released and not stack[-1]._scoped:
            stack.pop()
        stack.append(handle)

    def top(self, owner: int) -> H | None:
        """The newest handle of owner that is not released."""
        return next((h for h in reversed(self._stacks.get(owner, ())) if not h.released), None)

    def to_release(self, owner: int) -> H | None:
        handle = self.top(owner)
        if handle is None:
            handle = self._only([h for h in self if not h.released])
        if handle is not None and not handle._scoped:
            self._remove(handle)
        return handle

    def to_exit(self, owner: int) -> H | None:
        """The handle of the `with` block that ends."""
        handle = next((h for h in reversed(self._stacks.get(owner, ())) if h._scoped), None)
        if handle is None:
            handle = self._only([h for h in self if h._scoped])
        if handle is not None:
            self._remove(handle)
        return handle

    def _only(self, handles: list[H]) -> H | None:
        return handles[0] if self._any_owner and len(handles) == 1 else None

    def _remove(self, handle: H) -> None:
        for owner, stack in self._stacks.items():
            if handle in stack:
                stack.remove(handle)
                if not stack:
                    del self._stacks[owner]
                return
