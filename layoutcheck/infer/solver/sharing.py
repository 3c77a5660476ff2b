"""Which values lie in one memory, so that writing into one changes the others.

Shape rules say what is a view; ``rules/memory/aliasing.json`` names the ops that copy all the same, always or only where their
operand has strides that forbid a view. Results of in-place ops are linked as they are met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.infer.calls.call import slots_in
from layoutcheck.program import CALL, OpInstance, Program
from layoutcheck.resources import rules_dir
from layoutcheck.transforms import find

_SCATTERED = frozenset(
    (
        "permute",
        "transpose",
        "t",
        "movedim",
        "expand",
        "slice",
        "narrow",
        "select",
        "split",
        "chunk",
        "unbind",
    )
)


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_document(rules_dir() / "memory" / "aliasing.json", "the ops that alias")
    return found


@lru_cache(maxsize=4096)
def _listed(key: str, target: str) -> bool:
    return any(fnmatchcase(target, pattern) for pattern in _data()[key])


def _unless(target: str) -> str | None:
    pairs = _data()["identity_unless"].items()
    return next((param for pattern, param in pairs if fnmatchcase(target, pattern)), None)


def kind_of(instance: OpInstance) -> tuple[str, int]:
    """How an op's outputs lie: ``own`` memory, a ``view``, the ``same`` tensor or ``maybe`` a view; and of which slot."""
    rule = instance.rule
    if rule is None or instance.error:
        return "own", 0
    target = instance.target
    unless = _unless(target)
    if unless is not None and not instance.params.get(unless):
        return "view", 0
    transform = find(rule.code) if rule.code else None
    if transform is None or not transform.is_view or _listed("copies", target):
        return "own", 0
    if instance.params.get("copy") is True:
        return "own", 0
    if _listed("copies_when_strided", target):
        return "maybe", _source(instance)
    return ("same" if rule.code == "same" else "view"), _source(instance)


def _source(instance: OpInstance) -> int:
    """The slot of the viewed operand: the first tensor among the arguments."""
    for value in instance.params.values():
        for slot in slots_in(value):
            return slot
    return 0


class Sharing:
    """Views of a program and what they are taken of.

    `base[v]` is the value of which v is a view, or which v is by another name (`given_back[v]`: an in-place op gave it back).
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.base: dict[int, int] = {}
        self.given_back: set[int] = set()
        self.views: dict[int, list[int]] = {}
        self.last_read = [-1] * program.n_values
        scattered: set[int] = set()
        kinds: dict[int, tuple[str, int]] = {}
        for k, kind in enumerate(program.kind):
            ins = program.inputs[k]
            for v in ins:
                self.last_read[v] = k
            if kind != CALL:
                continue
            op = program.op[k]
            if op not in kinds:
                kinds[op] = kind_of(program.instances[op])
            how, slot = kinds[op]
            if how == "own" or not ins:
                continue
            of = ins[slot]
            if how == "maybe" and of in scattered:
                continue  # most strides forbid a view
            rule = program.instances[op].rule
            apart = of in scattered or (rule is not None and rule.code in _SCATTERED)
            for v in range(program.first[k], program.first[k] + program.outs[k]):
                self._link(v, of)
                if apart:
                    scattered.add(v)

    def __repr__(self) -> str:
        return f"<Sharing: {len(self.base)} views>"

    def _link(self, value: int, of: int) -> None:
        self.base[value] = of
        self.views.setdefault(of, []).append(value)

    def gives_back(self, value: int, operand: int) -> None:
        """An in-place op's output is its operand."""
        if value not in self.base:
            self.given_back.add(value)
            self._link(value, operand)

    def stale(self, of: int, k: int, but: int = -1) -> Iterator[int]:
        """Values that lie in the memory of `of` directly, made before call k and read after it (or seen through ones that are);
        without `but` and what lies beside it.
        """
        for v in self.views.get(of, ()):
            if v == but or self.program.value_call[v] >= k or not self._read_after(v, k):
                continue
            if but < 0 or not self._beside(v, but):
                yield v

    def _read_after(self, value: int, k: int) -> bool:
        return self.last_read[value] > k or any(self._read_after(v, k) for v in self.views.get(value, ()))

    def _beside(self, one: int, other: int) -> bool:
        """Whether two views of one value have no element in common."""
        p = self.program
        a, b = p.value_call[one], p.value_call[other]
        first, second = p.instances[p.op[a]], p.instances[p.op[b]]
        rule = first.rule
        transform = find(rule.code) if rule is not None and rule.code else None
        if a == b:
            return transform is not None and transform.in_pieces
        if rule is None or first.rule is not second.rule or transform is None:
            return False
        mine, theirs = (
            {n: i.params.get(rule.options.get(n, n)) for n in ("dim", "index", "start", "end")}
            for i in (first, second)
        )
        if mine["dim"] != theirs["dim"]:
            return False
        if transform.name == "select":
            at = (mine["index"], theirs["index"])
            return all(isinstance(i, int) and i >= 0 for i in at) and at[0] != at[1]
        if transform.name != "slice":
            return False
        ends = [
            n for x in (mine, theirs) for n in (x["start"] or 0, x["end"]) if isinstance(n, int) and n >= 0
        ]
        return len(ends) == 4 and (ends[1] <= ends[2] or ends[3] <= ends[0])
