"""Comparing two programs call by call.

A call's class is its key with the classes of what it reads, down to the inputs, which are told apart by dtype and shape alone: two
calls of one class compute the same thing from the same kind of inputs. What has no partner of its class on the other side
diverges; the first such call is the divergence, everything behind it follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layoutcheck.equivalence.alike import Alike
from layoutcheck.equivalence.result import Comparison, Divergence, Shown, Traffic
from layoutcheck.equivalence.side import Side, prepare
from layoutcheck.equivalence.traffic import traffic
from layoutcheck.graph import Graph, TensorMeta
from layoutcheck.layouts import Layout
from layoutcheck.regions.flat import INPUT, OUTPUT, OUTS, KeyInfo, Keys, size_calls
from layoutcheck.regions.fusion_rules import FusionBook
from layoutcheck.rules.rulebook import RuleBook


def diff(
    a: Graph | str | Path,
    b: Graph | str | Path,
    *,
    repeats: Sequence[int] | None = None,
    rules: Sequence[str | Path] = (),
    **options: Any,
) -> Comparison:
    """Compare two graphs as programs: calls, wiring, layouts, shapes, collectives and their bytes.

    Both are expanded first and compared up to fusion classes (`rules/fusion/`). Names, ids, and which weights are which do not
    matter; whether layers share an input does.

    Args:
        a, b: graphs, or their paths.
        repeats: numbers of repeats to give to the regions of each graph that has regions.
        rules: folders of further rules (`*.rules`, `*.fusion`).
        options: `groups`, `rank`, `world`, `tokens`, `layouts`, `assumptions`, `plan`, `trust` as in `check`.

    Raises:
        InputError: a graph or an option is malformed.
    """
    keys = Keys(RuleBook.load([Path(r) for r in rules]), FusionBook.load(rules))
    options = {**options, "rules": list(rules)}
    sides = [_side(graph, keys, options, repeats) for graph in (a, b)]
    return _Comparing(sides[0], sides[1]).run()


def equivalent(a: Graph | str | Path, b: Graph | str | Path, **options: Any) -> bool:
    """Whether two graphs are the same program; see `diff` for the options and for what differs."""
    return bool(diff(a, b, **options))


def _side(
    graph: Graph | str | Path, keys: Keys, options: dict[str, Any], repeats: Sequence[int] | None
) -> Side:
    if not isinstance(graph, Graph):
        from layoutcheck.readers import load

        graph = load(graph)
    if repeats is not None:
        from layoutcheck.regions.markers import find_markers

        if not find_markers(graph, keys.book):
            repeats = None
    return prepare(graph, keys, options, repeats)


class _Classes:
    """Numbers for classes, shared by both sides."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._known: dict[Any, int] = {}
        self._sizes: dict[int, Any] = {}

    def of(self, side: Side) -> list[int]:
        """The class of every call of a side. The output is in none."""
        flat, infos, known = side.flat, self.keys.infos, self._known
        classes: list[int] = []
        for node, key, refs in zip(flat.nodes, flat.keys, flat.refs):
            if key == INPUT:
                meta = node.meta
                what: Any = (
                    ("input", meta.dtype, meta.shape)
                    if isinstance(meta, TensorMeta)
                    else ("input", str(meta))
                )
            elif key == OUTPUT:
                classes.append(-1)
                continue
            else:
                info = infos[key]
                reads = [(classes[refs[j] // OUTS], refs[j] % OUTS) for j in info.order]
                if info.swap is not None:
                    i, j = info.swap
                    if reads[j] < reads[i]:
                        reads[i], reads[j] = reads[j], reads[i]
                what = (self._spelled(side, len(classes), key) or info.canonical, *reads)
            classes.append(known.setdefault(what, len(known)))
        return classes

    def _spelled(self, side: Side, call: int, key: int) -> Any:
        """A view's key with its -1 computed, so that both spellings of a size are one; None for other calls."""
        size = self._sizes.get(key, _UNSEEN)
        info = self.keys.infos[key]
        if size is _UNSEEN:
            size = self._sizes[key] = _size_given(self.keys.book.lookup(info.target), info)
        if size is None:
            return None
        found = side.layouts(call)
        shape = found[0].shape if found and isinstance(found[0], Layout) else ()
        if len(shape) != len(size) or any(n not in (-1, extent) for n, extent in zip(size, shape)):
            return None
        return (info.target, shape)


_UNSEEN: Any = object()


def _size_given(rule: Any, info: KeyInfo) -> tuple[int, ...] | None:
    """The size that a view is given, where all of it are numbers."""
    if rule is None or rule.code != "view" or not info.bound:
        return None
    size = dict(info.literals).get(rule.options.get("size", "size"))
    return size if isinstance(size, tuple) and all(type(n) is int for n in size) else None


class _Comparing:
    def __init__(self, a: Side, b: Side) -> None:
        self.sides = (a, b)
        classes = _Classes(a.keys)
        self.classes = (classes.of(a), classes.of(b))
        # Arithmetic on sizes is compared through what reads it: how often it is written down does not matter.
        self.sizes = tuple(set(size_calls(side.flat, side.keys)) for side in self.sides)
        self.members = tuple(self._members(i) for i in range(2))
        self.alike = Alike(a.analysis.mesh, b.analysis.mesh)
        self.traffic = self._traffic()

    def _members(self, i: int) -> dict[int, list[int]]:
        """The calls of each class, in order; size arithmetic left out."""
        found: dict[int, list[int]] = {}
        for call, key in enumerate(self.sides[i].flat.keys):
            if key >= 0 and call not in self.sizes[i]:
                found.setdefault(self.classes[i][call], []).append(call)
        return found

    def _traffic(self) -> dict[tuple[str, str], tuple[Traffic | None, Traffic | None]]:
        a, b = (traffic(side.analysis) for side in self.sides)
        return {key: (a.get(key), b.get(key)) for key in {*a, *b}}

    def run(self) -> Comparison:
        counts = [sum(len(calls) for calls in found.values()) for found in self.members]
        a, b = self.members
        matched = sum(min(len(calls), len(b.get(c, ()))) for c, calls in a.items())
        found = (
            self._calls()
            or self._inputs()
            or self._outputs()
            or self._groups()
            or self._layouts()
            or self._sent()
        )
        return Comparison(found, matched, (counts[0], counts[1]), self.traffic)

    def _unmatched(self, i: int) -> list[int]:
        """Calls of side `i` beyond what the other side has of their class, in order."""
        other = self.members[1 - i]
        out = []
        for c, calls in self.members[i].items():
            out.extend(calls[len(other.get(c, ())) :])
        return sorted(out)

    def _calls(self) -> Divergence | None:
        loose = (self._unmatched(0), self._unmatched(1))
        if not loose[0] and not loose[1]:
            return None
        # The side that diverges after fewer calls shows where.
        at = min(
            (i for i in range(2) if loose[i]), key=lambda i: loose[i][0] - self._inputs_before(i, loose[i][0])
        )
        call = loose[at][0]
        partner = self._partner(at, call, loose[1 - at])
        sides = self.sides
        shown = [sides[at].show(call), sides[1 - at].show(partner)]
        a, b = shown if at == 0 else reversed(shown)
        name = "A" if at == 0 else "B"
        other = "B" if at == 0 else "A"
        what = "has no such call" if partner is None else "goes on differently"
        text = f"{name} does {sides[at].show(call).call}, {other} {what}"
        return Divergence("op", text, a, b, self._reads(at, call))

    def _inputs_before(self, i: int, call: int) -> int:
        return sum(1 for key in self.sides[i].flat.keys[:call] if key == INPUT)

    def _partner(self, i: int, call: int, loose: list[int]) -> int | None:
        """The first unmatched call of the other side that reads what `call` reads; failing that, the first with its target."""
        other = 1 - i
        wanted = {
            (self.classes[i][v // OUTS], v % OUTS)
            for v in self.sides[i].flat.refs[call]
            if self.sides[i].flat.keys[v // OUTS] >= 0
        }
        flat = self.sides[other].flat
        for candidate in loose if wanted else ():
            if any((self.classes[other][v // OUTS], v % OUTS) in wanted for v in flat.refs[candidate]):
                return candidate
        target = self.sides[i].flat.nodes[call].target
        return next((c for c in loose if flat.nodes[c].target == target), None)

    def _reads(self, i: int, call: int) -> tuple[str, ...]:
        """What a diverging call reads, as text: names on both sides and the layout."""
        side, other = self.sides[i], self.sides[1 - i]
        out = []
        for v in dict.fromkeys(side.flat.refs[call]):
            source, number = divmod(v, OUTS)
            there = self.members[1 - i].get(self.classes[i][source], ())
            text = f"{side.flat.name(v)}  {side.layout_text(v)}"
            if there and side.flat.keys[source] >= 0:
                twin = other.flat.name(there[0] * OUTS + number)
                names = (side.flat.name(v), twin) if i == 0 else (twin, side.flat.name(v))
                text = f"{names[0]} in A, {names[1]} in B  {side.layout_text(v)}"
            out.append(text)
        return tuple(out[:4])

    def _inputs(self) -> Divergence | None:
        """Inputs are told apart by who reads them: a weight that two layers share is no pair of weights."""
        uses = [self._uses(i) for i in range(2)]
        tables = [Counter(found.values()) for found in uses]
        for i in range(2):
            extra = tables[i] - tables[1 - i]
            if extra:
                names = [n for n, use in uses[i].items() if use in extra]
                first = min(names, key=lambda n: self._first_reader(i, n))
                use = uses[i][first]
                other = self._closest(uses[1 - i], use)
                sides = self.sides
                shown = [
                    Shown(first, call=f"read {len(use)} times"),
                    Shown(other[0], call=f"read {other[1]} times"),
                ]
                a, b = shown if i == 0 else reversed(shown)
                reader = sides[i].flat.nodes[self._first_reader(i, first)].name
                return Divergence("input", f"an input that {reader} reads is shared differently", a, b)
        return None

    def _uses(self, i: int) -> dict[str, tuple[tuple[int, int], ...]]:
        side, classes = self.sides[i], self.classes[i]
        found: dict[int, list[tuple[int, int]]] = {}
        for call, (key, refs) in enumerate(zip(side.flat.keys, side.flat.refs)):
            if key < 0 or call in self.sizes[i]:
                continue
            order = side.keys.infos[key].order
            swap = side.keys.infos[key].swap
            for j, v in enumerate(refs):
                if side.flat.keys[v // OUTS] == INPUT:
                    at = order.index(j)
                    found.setdefault(v // OUTS, []).append((classes[call], -1 if swap and at in swap else at))
        return {side.flat.nodes[v].name: tuple(sorted(use)) for v, use in found.items()}

    def _first_reader(self, i: int, name: str) -> int:
        flat = self.sides[i].flat
        value = flat.values[name]
        return next(call for call, refs in enumerate(flat.refs) if value in refs)

    def _closest(
        self, uses: dict[str, tuple[tuple[int, int], ...]], use: tuple[tuple[int, int], ...]
    ) -> tuple[str | None, int]:
        """The input of the other side that shares a reader with `use`."""
        for name, other in uses.items():
            if set(other) & set(use) and other != use:
                return name, len(other)
        return None, 0

    def _outputs(self) -> Divergence | None:
        found = [self._returned(i) for i in range(2)]
        if found[0] == found[1]:
            return None
        sides = self.sides
        shown = []
        for i in range(2):
            call = next(c for c, key in enumerate(sides[i].flat.keys) if key == OUTPUT)
            names = [sides[i].flat.name(v) for v in sides[i].flat.refs[call]]
            text = ", ".join(names[:6]) + (f", ... {len(names)} values" if len(names) > 6 else "")
            shown.append(Shown("output", call=text))
        return Divergence("output", "the outputs differ", shown[0], shown[1])

    def _returned(self, i: int) -> tuple[list[Any], Counter[Any]]:
        """What the output reads: in order, and written caches in any order."""
        side = self.sides[i]
        call = next((c for c, key in enumerate(side.flat.keys) if key == OUTPUT), None)
        ordered: list[Any] = []
        caches: Counter[Any] = Counter()
        for v in side.flat.refs[call] if call is not None else ():
            entry = (self.classes[i][v // OUTS], v % OUTS)
            if _written(side, v // OUTS):
                caches[entry] += 1
            else:
                ordered.append(entry)
        return ordered, caches

    def _groups(self) -> Divergence | None:
        if self.alike.groups_match:
            return None
        shown = [
            Shown(
                "groups", call=", ".join(f"{x.name} of {x.size}" for x in side.analysis.mesh.axes) or "none"
            )
            for side in self.sides
        ]
        return Divergence("groups", "the groups of ranks differ", shown[0], shown[1])

    def _layouts(self) -> Divergence | None:
        a, b = self.sides
        order = sorted((call, c, n) for c, calls in self.members[0].items() for n, call in enumerate(calls))
        inputs = self._input_pairs()
        for call, twin in [*inputs, *((call, self.members[1][c][n]) for call, c, n in order)]:
            mine, yours = a.layouts(call), b.layouts(twin)
            if len(mine) == len(yours) and all(self.alike.layouts(x, y) for x, y in zip(mine, yours)):
                continue
            shapes = [[getattr(x, "shape", None) for x in found] for found in (mine, yours)]
            kind = "layout" if shapes[0] == shapes[1] else "shape"
            return Divergence(
                kind,
                f"{a.flat.nodes[call].name} and {b.flat.nodes[twin].name} do the same with another {kind}",
                a.show(call),
                b.show(twin),
                self._reads(0, call),
            )
        return None

    def _input_pairs(self) -> list[tuple[int, int]]:
        """Inputs that are read in the same places, in order."""
        uses = [self._uses(i) for i in range(2)]
        by_use: dict[Any, list[int]] = {}
        for name, use in uses[1].items():
            by_use.setdefault(use, []).append(self.sides[1].flat.values[name] // OUTS)
        pairs = []
        for name, use in uses[0].items():
            twins = by_use.get(use)
            if twins:
                pairs.append((self.sides[0].flat.values[name] // OUTS, twins.pop(0)))
        return pairs

    def _sent(self) -> Divergence | None:
        for (op, group), (a, b) in sorted(self.traffic.items()):
            if a != b:
                shown = [
                    Shown(op, call=f"{x.count} of {x.bytes} bytes" if x else "none", place=group)
                    for x in (a, b)
                ]
                return Divergence("traffic", f"{op} over {group} differs", shown[0], shown[1])
        return None


def _written(side: Side, call: int) -> bool:
    program = side.analysis.program
    k = program.node_call.get(side.flat.nodes[call].name)
    if k is None or program.op[k] < 0:
        return False
    instance = program.instances[program.op[k]]
    rule = instance.rule
    return bool(instance.bases or (rule is not None and (rule.mutates or rule.code == "cache_write")))
