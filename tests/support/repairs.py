"""Carries out the repairs that findings print, on graphs in the JSON form of the dialect `tensor_cast`.

Each form of words has a function that edits the graph; what the words leave open (sizes) is taken from the report. Recorded
shapes are dropped, since they were those of the faulty program.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from support.builder import Json
from support.engine import refs

Act = Callable[..., None]
ACTS: list[tuple[re.Pattern[str], Act]] = []

CONVERSION = (
    r"(all_gather|slice at rank|all_reduce|reduce_scatter)(?: over (\w+)|\((\w+)\))(?: along axis (\d+))?"
)


def form(words: str) -> Callable[[Act], Act]:
    """Decorator: the function carries out repairs of these words; it gets the work and the groups that matched."""

    def enter(act: Act) -> Act:
        ACTS.append((re.compile(words), act))
        return act

    return enter


class Work:
    """A copy of a graph being repaired at one node, with the report on the faulty one."""

    def __init__(self, graph: Json, report: Any, at: str) -> None:
        finding = next(f for f in report.findings if f.node == at)
        self.operand = finding.operands[0].name if len(finding.operands) == 1 else ""
        self.graph = copy.deepcopy(graph)
        self.nodes: list[Json] = self.graph["nodes"]
        self.report, self.at = report, at
        self.made = 0
        for n in self.nodes:
            if n["op"] == "call_function":
                n["meta"] = None

    def node(self, name: str) -> Json:
        return next(n for n in self.nodes if n["name"] == name)

    def tokens(self) -> int:
        """How many tokens there are, without padding."""
        (found,) = {
            n["meta"]["shape"][0]
            for n in self.nodes
            if n["op"] == "placeholder" and n["meta"]["layout"].startswith("[T,")
        }
        return int(found)

    def group(self, name: str) -> list[int]:
        ranks: list[int] = self.graph["config"]["groups"][name]
        return ranks

    def insert(self, target: str, args: list[Any], before: str) -> str:
        """A new call in front of a node; its name."""
        self.made += 1
        name = f"repair_{self.made}"
        index = self.nodes.index(self.node(before))
        new = {"name": name, "op": "call_function", "target": target, "args": args, "meta": None}
        self.nodes.insert(index, new)
        return name

    def read(self, node: str, old: str, new: str) -> None:
        """`node` reads `new` where it read `old`."""
        n = self.node(node)
        n["args"] = _replaced(n["args"], old, new)
        n["kwargs"] = _replaced(n.get("kwargs", {}), old, new)

    def readers(self, name: str) -> list[str]:
        return [n["name"] for n in self.nodes if name in set(refs(n))]

    def drop(self, name: str) -> None:
        """Take a call out; readers read its first operand."""
        source = next(refs(self.node(name)))
        for reader in self.readers(name):
            self.read(reader, name, source)
        self.nodes.remove(self.node(name))

    def convert(self, what: str, group: str, axis: int, name: str, before: str) -> str:
        """A conversion of a value as a new call; its name."""
        ranks, rank = self.group(group), self.graph["rank"]
        if what == "slice at rank":
            size = self.report.layout_of(name).shape[axis] // len(ranks)
            at = ranks.index(rank)
            return self.insert("aten.slice.Tensor", [_ref(name), axis, at * size, at * size + size], before)
        args = [_ref(name), rank, ranks] if what == "all_reduce" else [_ref(name), axis, rank, ranks]
        return self.insert(f"tensor_cast.{what}.default", args, before)


def _ref(name: str) -> Json:
    return {"node": name}


def _replaced(value: Any, old: str, new: str) -> Any:
    if value == {"node": old}:
        return {"node": new}
    if isinstance(value, dict):
        return {k: _replaced(v, old, new) for k, v in value.items()}
    return [_replaced(v, old, new) for v in value] if isinstance(value, list) else value


def repaired(graph: Json, report: Any, at: str, text: str) -> Json:
    """The graph with a repair of the finding at node `at` carried out.

    Raises:
        KeyError: the words are in no form that is known here.
    """
    for words, act in ACTS:
        found = words.fullmatch(text)
        if found:
            work = Work(graph, report, at)
            act(work, *found.groups())
            return work.graph
    raise KeyError(text)


@form(
    rf"((?:{CONVERSION} of \w+(?: and \w+)?(?: and )?)+) first(?:, slice at rank\((\w+)\) along axis (\d+) of the result)?"
)
def convert_operands(work: Work, text: str, *rest: str | None) -> None:
    *_, back, axis = rest
    for what, over, of, dim, names in re.findall(CONVERSION + r" of (\w+(?: and (?!all_|slice )\w+)?)", text):
        for name in names.split(" and "):
            work.read(work.at, name, work.convert(what, over or of, int(dim or 0), name, work.at))
    if back is not None and axis is not None:
        slice_result(work, back, int(axis))


def slice_result(work: Work, group: str, axis: int) -> None:
    """The rank's share of what the node gives, for all its readers."""
    ranks = work.group(group)
    size = work.report.layout_of(work.at).shape[axis]
    at = ranks.index(work.graph["rank"])
    readers = work.readers(work.at)
    new = work.insert("aten.slice.Tensor", [_ref(work.at), axis, at * size, at * size + size], readers[0])
    for reader in readers:
        work.read(reader, work.at, new)


@form(
    rf"{CONVERSION} of (\w+) and replicate (\w+) over \w+ first, slice at rank\((\w+)\) along axis (\d+) of the result"
)
def convert_and_replicate(
    work: Work, what: str, over: str, of: str, dim: str, name: str, weight: str, back: str, axis: str
) -> None:
    work.read(work.at, name, work.convert(what, over or of, int(dim or 0), name, work.at))
    replicate(work, weight)
    slice_result(work, back, int(axis))


def replicate(work: Work, weight: str) -> None:
    """A declared weight becomes whole: its cut axes get all of their elements."""
    meta = work.node(weight)["meta"]
    parts = [part.strip() for part in meta["layout"].strip("[]").split(",")]
    meta["shape"] = [int(part.split("/")[0]) for part in parts]
    meta["layout"] = "[" + ", ".join(map(str, meta["shape"])) + "]"


@form(r"replicate the weights over \w+(?:, keep the gather|( and leave this collective out))?")
def replicate_all(work: Work, leave: str | None) -> None:
    for n in work.nodes:
        if n["op"] == "placeholder" and "/" in n["meta"].get("layout", "") and "T" not in n["meta"]["layout"]:
            replicate(work, n["name"])
    if leave:
        work.drop(work.at)


@form(r"all_gather the tokens over (\w+) before the first of these weights(.*)")
def gather_tokens(work: Work, group: str, rest: str) -> None:
    """Gather the tokens at the input; then what the words say of the node itself."""
    source = next(n["name"] for n in work.nodes if n["op"] == "placeholder" and "T/" in n["meta"]["layout"])
    readers = work.readers(source)
    new = work.convert("all_gather", group, 0, source, readers[0])
    for reader in readers:
        work.read(reader, source, new)
    ranks, rank = work.group(group), work.graph["rank"]
    n = work.node(work.at)
    if rest == ", reduce_scatter here":
        n["target"], n["args"] = "tensor_cast.reduce_scatter.default", [n["args"][0], 0, rank, ranks]
    elif rest == ", reduce_scatter before it leaves":
        before_output(work, "reduce_scatter", group, "", "")
    elif (
        found := re.fullmatch(r" instead of here, and gather the features along axis (\d)", rest)
    ) is not None:
        n["args"][1] = int(found.group(1))
    elif rest:
        raise KeyError(rest)


@form(rf"{CONVERSION} before it leaves")
def before_output(work: Work, what: str, over: str, of: str, dim: str) -> None:
    name = work.operand or next(refs(work.node("output")))
    work.read("output", name, work.convert(what, over or of, int(dim or 0), name, "output"))


@form(rf"(?:{CONVERSION}, then )?cut the padding off before it leaves")
def unpadded_output(work: Work, what: str | None, over: str, of: str, dim: str) -> None:
    if what is not None:
        before_output(work, what, over, of, dim)
    name = next(refs(work.node("output")))
    cut = work.insert("aten.slice.Tensor", [_ref(name), 0, 0, work.tokens()], "output")
    work.read("output", name, cut)


@form(r"leave this (?:collective|slice) out")
def leave_out(work: Work) -> None:
    work.drop(work.at)


@form(rf"{CONVERSION} of (\w+) first, and leave (\w+) out")
def convert_and_leave_out(work: Work, what: str, over: str, of: str, dim: str, name: str, other: str) -> None:
    work.read(work.at, name, work.convert(what, over or of, int(dim or 0), name, work.at))
    work.drop(other)


@form(r"move (\w+) in front of \w+(?:, to (\w+))?")
def move(work: Work, collective: str, name: str | None) -> None:
    """The collective behind the node is done on the node's pending operand instead."""
    made = next((n for n in work.nodes if n["name"] == collective), None)
    n = made or work.node(work.readers(work.at)[0])
    source = name or next(refs(work.node(work.at)))
    new = work.insert(n["target"], [_ref(source), *n["args"][1:]], work.at)
    work.drop(n["name"])
    work.read(work.at, source, new)


@form(r"(?:gather|scatter) along axis (\d+)")
def along(work: Work, axis: str) -> None:
    work.node(work.at)["args"][1] = int(axis)


@form(rf"{CONVERSION} of (\w+), before (\w+)")
def convert_before(work: Work, what: str, over: str, of: str, dim: str, name: str, view: str) -> None:
    """Done in front of a view; the view's sizes are those of the whole then."""
    work.read(view, name, work.convert(what, over or of, int(dim or 0), name, view))
    shape = list(work.report.layout_of(view).shape)
    shape[0] *= len(work.group(over or of))
    work.node(view)["args"][1] = shape
    work.drop(work.at)


@form(r"slice at rank\((\w+)\)\*(\d+) instead of (\w+)")
def own_slice(work: Work, group: str, size: str, name: str) -> None:
    start = work.group(group).index(work.graph["rank"]) * int(size)
    work.node(name)["args"][2:4] = [start, start + int(size)]


@form(r"count from rank\((\w+)\)\*(\d+) in (\w+)")
def count_from(work: Work, group: str, size: str, name: str) -> None:
    start = work.group(group).index(work.graph["rank"]) * int(size)
    n = work.node(name)
    n["target"], n["args"] = "aten.arange.start", [start, start + int(size)]


@form(r"pad (\w+) by (\d+) rows to \d+ first")
def pad(work: Work, name: str, rows: str) -> None:
    amounts = [0] * (2 * len(work.report.layout_of(name).shape) - 1) + [int(rows)]
    work.read(work.at, name, work.insert("aten.constant_pad_nd.default", [_ref(name), amounts, 0.0], work.at))


@form(r"cut the padding off of (\w+) first")
def unpad(work: Work, name: str) -> None:
    cut = work.insert("aten.slice.Tensor", [_ref(name), 0, 0, work.tokens()], work.at)
    work.read(work.at, name, cut)


@form(r"run it over (\w+) instead")
def over_another_group(work: Work, group: str) -> None:
    work.node(work.at)["args"][-1] = work.group(group)


@form(r"declare (\w+) as (.*)")
def declare(work: Work, name: str, layout: str) -> None:
    work.node(name)["meta"]["layout"] = layout


@form(r"add (\w+) behind (\w+)")
def add_behind(work: Work, name: str, collective: str) -> None:
    """addmm without its addend, which is added to the reduced product."""
    n = work.node(work.at)
    assert n["target"] == "aten.addmm.default"
    n["target"], n["args"] = "aten.mm.default", n["args"][1:]
    readers = work.readers(collective)
    new = work.insert("aten.add.Tensor", [_ref(collective), _ref(name)], readers[0])
    for reader in readers:
        work.read(reader, collective, new)


@form(rf"{CONVERSION} of (\w+), and store it to all of (\w+)")
def store_whole(work: Work, what: str, over: str, of: str, dim: str, name: str, buffer: str) -> None:
    whole = work.convert(what, over or of, int(dim or 0), name, work.at)
    work.node(work.at)["args"] = [_ref(buffer), _ref(whole)]
