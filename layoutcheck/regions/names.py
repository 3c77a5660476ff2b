"""Fresh node names."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Hands out names that no node has yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """`base` itself where it is free, else `base_1`, `base_2`, ..."""
        taken = self._taken
        if base not in taken:
            taken.add(base)
            return base
        count = self._next.get(base, 1)
        while (name := f"{base}_{count}") in taken:
            count += 1
        self._next[base] = count + 1
        taken.add(name)
        return name

    def repeat(self, base: str, number: int) -> str:
        """The name of a node's copy in repeat `number`."""
        return self.fresh(f"{base}_r{number}")
