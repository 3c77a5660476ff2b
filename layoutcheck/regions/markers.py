"""Reading the markers of repeated bodies.

A body is written once, between a begin and an end marker of one id; each copy marker of that id stands for one more repeat. A
region with several carried values has one marker for each of them: `n` begins, `n` ends, and `n` copies a repeat, paired in
their order. Which ops are markers is said by the rules (`code region_begin`, `region_end`, `region_copy`).
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.rules.rulebook import RuleBook

BEGIN, END, COPY = "region_begin", "region_end", "region_copy"
_CODES = frozenset((BEGIN, END, COPY))


@attrs.frozen
class Marker:
    """One marker: its place among the nodes, its kind, the region's id and the node whose value it carries."""

    index: int
    kind: str
    region: int
    value: str


@attrs.define
class Region:
    """A repeated body.

    Attributes:
        id: what ties its markers together.
        begins, ends: indices of the nodes that begin and end it, one a carried value.
        copies: per further repeat, the indices of its copy markers.
        parent: the id of the region that it lies in, None at the outermost level.
    """

    id: int
    begins: list[int]
    ends: list[int] = attrs.field(factory=list)
    copies: list[list[int]] = attrs.field(factory=list)
    parent: int | None = None

    @property
    def repeats(self) -> int:
        """How often the body runs, the written one included."""
        return 1 + len(self.copies)

    @property
    def carried(self) -> int:
        """Number of values that go from one repeat to the next."""
        return len(self.begins)

    def spans(self, index: int) -> bool:
        """Whether the node at `index` lies in the written body (its markers included)."""
        return self.begins[0] <= index <= self.ends[-1]


def marker_kind(book: RuleBook, target: str) -> str | None:
    """`region_begin`, `region_end` or `region_copy` if the target's rule says so, else None."""
    rule = book.lookup(target)
    code = rule.code if rule is not None else None
    return code if code in _CODES else None


def read_marker(book: RuleBook, node: Node, index: int, kind: str) -> Marker:
    """A marker node's region and carried value. Raises InputError where it has no id or no tensor."""
    rule = book.lookup(node.target)
    assert rule is not None
    values: list[Any] = list(rule.bind(node.args, node.kwargs).values())
    region = next((v for v in values if type(v) is int), None)
    value = next((v.name for v in values if type(v) is Ref), None)
    if region is None or value is None:
        raise InputError("a region's marker needs a tensor and an integer id", where=node.name)
    return Marker(index, kind, region, value)


def find_markers(graph: Graph, book: RuleBook) -> dict[int, Marker]:
    """All markers by their place among the nodes."""
    kinds: dict[str, str | None] = {}
    found = {}
    for i, node in enumerate(graph.nodes):
        if node.op != "call_function":
            continue
        target = node.target
        if target not in kinds:
            kinds[target] = marker_kind(book, target)
        kind = kinds[target]
        if kind is not None:
            found[i] = read_marker(book, node, i, kind)
    return found


def find_regions(
    graph: Graph, book: RuleBook | None = None, markers: dict[int, Marker] | None = None
) -> list[Region]:
    """The regions of a graph, in the order in which they begin.

    Raises:
        InputError: markers that do not pair up, or regions that overlap without one lying in the other.
    """
    book = RuleBook.load() if book is None else book
    markers = find_markers(graph, book) if markers is None else markers
    nodes = graph.nodes
    regions: dict[int, Region] = {}
    loose: dict[int, list[int]] = {}
    open_: list[Region] = []
    for i, marker in markers.items():
        region = regions.get(marker.region)
        where = nodes[i].name
        if marker.kind == BEGIN:
            if region is None:
                parent = open_[-1].id if open_ else None
                region = regions[marker.region] = Region(marker.region, [i], parent=parent)
                open_.append(region)
            elif region.ends:
                raise InputError(f"region {marker.region} begins again after its end", where)
            else:
                region.begins.append(i)
            continue
        if region is None:
            raise InputError(f"region {marker.region} has not begun", where)
        if marker.kind == END:
            if not open_ or open_[-1] is not region:
                raise InputError(f"region {marker.region} ends inside of another one, or twice", where)
            region.ends.append(i)
            if len(region.ends) == len(region.begins):
                open_.pop()
            continue
        if len(region.ends) < len(region.begins):
            raise InputError(f"region {marker.region} is copied before its end", where)
        if (open_[-1].id if open_ else None) != region.parent:
            raise InputError(f"region {marker.region} is copied outside of the region that it lies in", where)
        loose.setdefault(marker.region, []).append(i)
    for region in open_:
        raise InputError(f"region {region.id} has no end", nodes[region.begins[0]].name)
    for region in regions.values():
        n, copies = region.carried, loose.get(region.id, [])
        if len(copies) % n:
            raise InputError(
                f"region {region.id} carries {n} values but has {len(copies)} copy markers, which is no multiple",
                nodes[copies[-1]].name,
            )
        region.copies = [copies[at : at + n] for at in range(0, len(copies), n)]
    _check_rounds(graph, regions, markers)
    return list(regions.values())


def _check_rounds(graph: Graph, regions: dict[int, Region], markers: dict[int, Marker]) -> None:
    """What a repeat reads stands before its first copy marker, since the repeat runs there."""
    several = [r for r in regions.values() if r.carried > 1]
    if not several:
        return
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    for region in several:
        for round_ in region.copies:
            late = next((i for i in round_ if place[markers[i].value] >= round_[0]), None)
            if late is not None:
                raise InputError(
                    f"the values of one repeat of region {region.id} have to stand before its first copy marker",
                    graph.nodes[late].name,
                )


@attrs.frozen
class MarkerOps:
    """The ops to write markers with: each takes a tensor and an id."""

    begin: str
    end: str
    copy: str


def marker_ops(book: RuleBook) -> MarkerOps:
    """The first ops of the rule book that can mark regions. Raises InputError where there are none."""
    found: dict[str, str] = {}
    for target, rule in book.rules.items():
        if rule.code in _CODES and len(rule.params) == 2 and not rule.options:
            found.setdefault(rule.code, target if target.count(".") > 1 else f"{target}.default")
    if len(found) < 3:
        raise InputError("no rule says which ops mark regions (code region_begin, region_end, region_copy)")
    return MarkerOps(found[BEGIN], found[END], found[COPY])
