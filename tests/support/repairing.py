"""Doing to a graph what the words of a repair say. Nothing here looks at how the checker found them."""

from __future__ import annotations

import copy
import re
from typing import Any

from .builder import Json
from .editing import Editor

GROUP = r"(?P<group>\w+)"
AXIS = r"(?: along axis (?P<axis>\d+))?"
FILL = r"(?: \(padded to (?P<fill>\d+)\))?"
CONVERSIONS = {
    "all_gather": rf"all_gather over {GROUP}{AXIS}(?P<unpad>, then cut the padding off)?",
    "all_reduce": rf"all_reduce over {GROUP}",
    "reduce_scatter": rf"reduce_scatter{FILL} over {GROUP}{AXIS}",
    "slice": rf"slice{FILL} at rank\({GROUP}\){AXIS}",
    "unpad": "cut the padding off",
}


class Unclear(Exception):
    """Words that are no instruction for one rank's graph."""


class Repair:
    """One repair of one finding in a graph; `done` gives the repaired graph."""

    def __init__(self, graph: Json, report: Any, finding: Any, dialect: str) -> None:
        self.e = Editor(copy.deepcopy(graph))
        self.report, self.finding, self.dialect = report, finding, dialect
        self.at = finding.node
        self.ranks: dict[str, list[int]] = graph["config"]["groups"]

    def done(self, text: str) -> Json:
        """Apply the words."""
        for end in (self._ending, self._whole):
            text, rest = end(text)
            if rest is None:
                break
        self.e.strip_below()
        return self.e.graph

    # ---- values

    def shape(self, name: str) -> list[Any]:
        return list(self.report.layout_of(name).shape)

    def index(self, group: str) -> int:
        return self.ranks[group].index(self.e.rank)

    def blamed(self) -> str:
        """The operand that the finding names as the one to blame."""
        return str(next(o.name for o in self.finding.operands if o.index == self.finding.operand))

    def call(self, target: str, args: list[Any], after: str) -> str:
        return self.e.call(target, args, after, f"fix_{target.split('.')[1]}")

    def collective(self, kind: str, x: str, group: str, dim: int, after: str) -> str:
        """A collective in the graph's own dialect."""
        ranks = self.ranks[group]
        if self.dialect == "tensor_cast":
            where = [] if kind == "all_reduce" else [dim]
            args = [{"node": x}, *where, self.e.rank, ranks]
            return self.call(f"tensor_cast.{kind}.default", args, after)
        p = len(ranks)
        if kind == "reduce_scatter" and dim:
            x = after = self.e.chunk_cat(x if x == after else self._copy(x, after), p, dim, 0)
        names = {
            "all_reduce": ("all_reduce", ["sum", group]),
            "all_gather": ("all_gather_into_tensor", [p, group]),
            "reduce_scatter": ("reduce_scatter_tensor", ["sum", p, group]),
        }
        op, more = names[kind]
        made = self.call(f"_c10d_functional.{op}.default", [{"node": x}, *more], after)
        out = self.call("_c10d_functional.wait_tensor.default", [{"node": made}], made)
        return self.e.chunk_cat(out, p, 0, dim) if kind == "all_gather" and dim else out

    def _copy(self, x: str, after: str) -> str:
        return self.call("aten.alias.default", [{"node": x}], after)

    def cut(self, x: str, dim: int, start: int, stop: int, after: str) -> str:
        return self.call("aten.slice.Tensor", [{"node": x}, dim, start, stop], after)

    def fill(self, x: str, dim: int, rows: int, after: str) -> str:
        amounts = [0, 0] * (len(self.shape(x)) - 1 - dim) + [0, rows]
        return self.call("aten.constant_pad_nd.default", [{"node": x}, amounts, 0.0], after)

    def converted(
        self, kind: str, found: re.Match[str], x: str, after: str, extent: int | None = None
    ) -> str:
        """The name of `x` converted as matched, in nodes behind `after`; `extent` is that of the axis where x is new."""
        parts = found.groupdict()
        dim = int(parts.get("axis") or 0)
        if kind == "unpad":
            return self.cut(x, 0, 0, self.tokens(x), after)
        group = parts["group"]
        size = extent if extent is not None else self.shape(x)[dim]
        if parts.get("fill"):
            x = after = self.fill(x, dim, int(parts["fill"]) - size, after)
            size = int(parts["fill"])
        if kind == "slice":
            each = size // len(self.ranks[group])
            return self.cut(x, dim, self.index(group) * each, (self.index(group) + 1) * each, after)
        made = self.collective(kind, x, group, dim, after)
        return self.cut(made, dim, 0, self.tokens(x), made) if parts.get("unpad") else made

    def tokens(self, x: str) -> int:
        """The tokens in front of the padding of a padded value."""
        for axis in self.report.layout_of(x).axes:
            for f in axis:
                if f.domain.kind == "pad":
                    return int(f.domain.args[0].extent)
        raise Unclear(x)

    def instead(self, name: str, new: str) -> None:
        """Only the wrong call reads the new value."""
        self.e.replace_uses(name, new, only=[self.at])

    def left_out(self, name: str) -> None:
        node = self.e.node(name)
        operand = next(self.e.operands(node))
        out = name
        for reader in self.e.readers(name):
            if "wait_tensor" in reader["target"]:
                out = reader["name"]
        self.e.replace_uses(out, operand)
        for gone in dict.fromkeys((out, name)):
            self.e.remove(gone)
        self.e.touched |= {n["name"] for n in self.e.readers(operand)}

    # ---- words

    def _ending(self, text: str) -> tuple[str, bool | None]:
        """What is to be done behind the call."""
        if found := re.fullmatch(r"(.*), and leave (\w+) out", text):
            self.left_out(found[2])
            return found[1], True
        if found := re.fullmatch(rf"(.*), {CONVERSIONS['slice']} of the result", text):
            readers = [n["name"] for n in self.e.readers(self.at)]
            local = self.shape(self.at)[int(found["axis"] or 0)]
            size = local * len(self.ranks[found["group"]])
            new = self.converted("slice", found, self.at, self.at, size)
            self.e.replace_uses(self.at, new, only=readers)
            return found[1], True
        return text, True

    def _whole(self, text: str) -> tuple[str, bool | None]:
        e, node = self.e, self.e.node(self.at)
        before = e.before(self.at)
        if text.startswith("leave this "):
            self.left_out(self.at)
        elif found := re.fullmatch(r"(?:gather|scatter) along axis (\d+)", text):
            node["args"][1] = int(found[1])
            e.touched.add(self.at)
        elif found := re.fullmatch(r"move (\w+) in front of (\w+)(?:, to (\w+))?", text):
            unit, operand = e.unit(found[1]), found[3] or self.blamed()
            assert found[2] == self.at
            new = e.copy_unit(unit, operand, before)
            self.instead(operand, new)
            self.left_out(found[1])
        elif found := re.fullmatch(rf"slice at rank\({GROUP}\)\*(\d+) instead of (\w+)", text):
            start = self.index(found[1]) * int(found[2])
            made = e.node(found[3])
            made["args"][2:4] = [start, start + int(found[2])]
            e.touched.add(found[3])
        elif found := re.fullmatch(rf"all_gather over {GROUP}{AXIS} of (\w+), before (\w+)", text):
            raise Unclear(text)
        elif found := re.fullmatch(r"leave (\w+) and (\w+) out", text):
            source = next(e.operands(e.node(found[1])))
            e.replace_uses(found[2], source)
            e.touched |= {n["name"] for n in e.readers(source)}
        elif found := re.fullmatch(r"run (\w+) over (\w+) instead", text):
            self._over(self.at if found[1] == "it" else found[1], found[2])
        elif found := re.fullmatch(r"(.*) before it leaves", text):
            self._converted(found[1], [self.blamed()], before)
        elif found := re.fullmatch(r"zero (\w+) on all ranks of (\w+) but one first", text):
            if self.index(found[2]) == 0:
                raise Unclear(text)
            self.instead(found[1], self.call("aten.zeros_like.default", [{"node": found[1]}], before))
        elif found := re.fullmatch(rf"pad (\w+) by (\d+) rows to \d+{AXIS} first", text):
            dim = int(found["axis"] or 0)
            self.instead(found[1], self.fill(found[1], dim, int(found[2]), before))
        elif found := re.fullmatch(r"(.*) of ([\w\[\]]+(?: and [\w\[\]]+)*) first", text):
            self._converted(found[1], found[2].split(" and "), before)
        elif found := re.fullmatch(r"replicate (\w+) over \w+ first", text):
            self._whole_weight(found[1])
        elif found := re.fullmatch(r"all_gather the tokens over (\w+) before .*, reduce_scatter here", text):
            if found[1] not in self.ranks:
                raise Unclear(text)
            self._whole_tokens(found[1])
        elif text.startswith("replicate the weights over"):
            self._replicate()
            if text.endswith("leave this collective out"):
                self.left_out(self.at)
        else:
            raise Unclear(text)
        return text, None

    def _over(self, name: str, group: str) -> None:
        """A collective over another group: its ranks, or the group's name and size."""
        node, unit = self.e.node(name), self.e.unit(name)
        if not unit.functional:
            node["args"][-1] = self.ranks[group]
        else:
            size = len(self.ranks[group])
            node["args"] = [
                node["args"][0],
                *[size if a == unit.size else a for a in node["args"][1:-1]],
                group,
            ]
        self.e.touched.add(name)

    def _converted(self, words: str, names: list[str], before: str) -> None:
        for kind, pattern in CONVERSIONS.items():
            if found := re.fullmatch(pattern, words):
                for name in names:
                    new = self.converted(kind, found, name, self.e.before(self.at))
                    self.instead(name, new)
                return
        raise Unclear(words)

    def _replicate(self) -> None:
        """Whole weights for those declared shards that the wrong value is made with."""
        todo, seen = [self.blamed()], set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for operand in self.e.operands(self.e.node(name)):
                if "mixed@" in str(self.report.layout_text(operand)):
                    todo.append(operand)
                else:
                    self._whole_weight(operand)

    def _whole_tokens(self, group: str) -> None:
        """The tokens gathered where they first meet a sharded weight, and scattered here."""
        todo, seen = [self.blamed()], set()
        starts: list[str] = []
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            mixed = [
                o for o in self.e.operands(self.e.node(name)) if "mixed@" in str(self.report.layout_text(o))
            ]
            todo += mixed
            if not mixed:
                starts.append(name)
        for name in sorted(starts, key=[n["name"] for n in self.e.nodes].index):
            for operand in list(self.e.operands(self.e.node(name))):
                text = str(self.report.layout_text(operand))
                for dim, axis in enumerate(text[text.index("[") + 1 :].split(", ")):
                    if f"T/{len(self.ranks[group])}@{group}" in axis:
                        new = self.collective("all_gather", operand, group, dim, self.e.before(name))
                        self.e.replace_uses(operand, new, only=[name])
        unit = self.e.unit(self.at)
        if unit.kind == "all_reduce":
            new = self.collective("reduce_scatter", unit.operand, group, 0, self.e.before(self.at))
            self.e.replace_uses(unit.out, new)
            for gone in dict.fromkeys((unit.out, unit.name)):
                self.e.remove(gone)

    def _whole_weight(self, name: str) -> None:
        node = self.e.node(name)
        while node["op"] != "placeholder":
            behind = list(self.e.operands(node))
            if len(behind) != 1:
                return
            node = self.e.node(behind[0])
        layout = node["meta"].get("layout") or ""
        if "@" in layout and "T" not in layout:
            sizes = [int(part.split("/")[0]) for part in layout.strip("[]").split(", ")]
            node["meta"] = {**node["meta"], "shape": sizes, "layout": str(sizes)}
            self.e.touched.add(node["name"])
