"""The graph's output: nothing pending may leave, declared layouts must hold, and what came in whole leaves whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from layoutcheck.domains import TOKEN, Domain, Factor, base_of, is_token_like
from layoutcheck.graph import TensorMeta
from layoutcheck.infer.calls.call import Issue, dim_of
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import make_call, transform_of
from layoutcheck.infer.solver.run import Key, Typing
from layoutcheck.infer.solver.vocabulary import vocabularies
from layoutcheck.layout_text import parse_layout
from layoutcheck.layouts import Layout, bound_on_axis, partner_axis, render
from layoutcheck.program import CALL, OUTPUT, PLACEHOLDER
from layoutcheck.symbols import Size

_FAR = 64


def boundary_issues(analysis: Analysis, typing: Typing) -> list[tuple[int, Key, Issue]]:
    """Issues at the output node."""
    p = analysis.program
    out: list[tuple[int, Key, Issue]] = []
    for k, kind in enumerate(p.kind):
        if kind != OUTPUT:
            continue
        ins = p.inputs[k]
        key: Key = ("output", *[typing.types[v] for v in ins])
        meta = p.nodes[k].meta
        metas = list(meta) if isinstance(meta, tuple) else [meta] * (1 if len(ins) == 1 else 0)
        boundary = _Boundary(analysis, typing, k)
        for slot, value in enumerate(ins):
            of = typing.types[value]
            if not isinstance(of, Layout):
                continue
            declared = metas[slot] if slot < len(metas) else None
            text = declared.layout if isinstance(declared, TensorMeta) else None
            text = analysis.plan.leaving.get(value, text)
            issue = boundary.undeclared(of, slot) if text is None else boundary.declared(of, slot, text)
            if issue is not None:
                out.append((k, key, issue))
    return out


class _Boundary:
    """One output node: what leaves there, and what the program took in."""

    def __init__(self, analysis: Analysis, typing: Typing, call: int) -> None:
        self.analysis, self.typing, self.call = analysis, typing, call
        self.mesh = analysis.mesh

    @cached_property
    def entered(self) -> set[Domain]:
        """Token domains of which an input holds all."""
        p, types = self.analysis.program, self.typing.types
        return _held_whole([types[p.first[k]] for k, kind in enumerate(p.kind) if kind == PLACEHOLDER])

    @cached_property
    def kept(self) -> set[Layout]:
        """Layouts of caches: what came in as a shard is kept as one by whoever gave it."""
        plan, types = self.analysis.plan, self.typing.types
        return {
            types[v] for v, role in plan.roles.items() if role == "cache" and isinstance(types[v], Layout)
        }

    @cached_property
    def gathered(self) -> set[Domain]:
        """Token domains of which a gather makes all from shares: readers inside the program need all of them."""
        return _held_whole(of for _, of in self._answers("all_gather"))

    @cached_property
    def cut_back(self) -> set[Domain]:
        """Token domains that a slice takes off their padding."""
        p, types = self.analysis.program, self.typing.types
        found: set[Domain] = set()
        for k, of in self._answers("slice", "narrow"):
            padded = {
                f.domain.args[0] for f in _whole_tokens(types[p.inputs[k][0]]) if f.domain.kind == "pad"
            }
            found |= padded & {f.domain for f in _whole_tokens(of)}
        return found

    def _answers(self, *codes: str) -> Iterator[tuple[int, Layout]]:
        """Calls by these transforms, with the layout of what each gives."""
        p, types = self.analysis.program, self.typing.types
        wanted = {i for i, one in enumerate(p.instances) if one.rule is not None and one.rule.code in codes}
        for k, op in enumerate(p.op):
            of = types[p.first[k]] if op in wanted and p.outs[k] else None
            if isinstance(of, Layout):
                yield k, of

    def _meant_whole(self, value: int, of: Layout) -> str:
        """The slice, on a value's way to the boundary, that was to cut all tokens from a value that holds a share of them."""
        p, types = self.analysis.program, self.typing.types
        for _ in range(_FAR):
            k = p.value_call[value]
            transform = transform_of(p.instances[p.op[k]]) if p.kind[k] == CALL else None
            if transform is None or not p.inputs[k]:
                return ""
            given = p.inputs[k][0]
            if transform.name in ("slice", "narrow") and types[given] is of and self._asks_for_all(k, of):
                return p.nodes[k].name
            if not (transform.is_view or transform.name == "same") or types[given] is not of:
                return ""
            value = given
        return ""

    def _asks_for_all(self, k: int, of: Layout) -> bool:
        p, types = self.analysis.program, self.typing.types
        slots = tuple(types[v] for v in p.inputs[k])
        call = make_call(self.analysis.solution.runner.ctx, p.instances[p.op[k]], slots)
        dim = dim_of(call, "dim", of.rank, 0)
        asked = call.get("length") if call.has("length") else call.get("end")
        return asked in {
            base_of(b.domain).extent for _, b in bound_on_axis(of, dim) if is_token_like(b.domain)
        }

    @cached_property
    def left(self) -> set[Domain]:
        """Token domains of which an output holds all."""
        return _held_whole([self.typing.types[v] for v in self.analysis.program.inputs[self.call]])

    @cached_property
    def entries(self) -> set[Size]:
        """Sizes of the vocabularies that the program looks up in."""
        return {n for n, _ in vocabularies(self.analysis.program, self.typing)}

    def declared(self, of: Layout, slot: int, text: str) -> Issue | None:
        """Whether what leaves is what the boundary is declared as."""
        analysis, mesh = self.analysis, self.mesh
        node = analysis.program.nodes[self.call].name
        known = {d.name: d.extent for d in self.entered if d.kind == TOKEN}
        try:
            wanted = parse_layout(
                text, mesh, of.dtype, tuple(of.shape), node, {**known, **analysis.plan.names}
            )
        except ValueError:
            wanted = None
        # A domain that an input's axis has made has no other name than the one that is printed.
        if wanted is not None and render(wanted, mesh.names()) == render(of, mesh.names()):
            return None
        shown = f" ({render(wanted, mesh.names())})" if wanted is not None else ""
        return self._leak(of, slot) or Issue(
            "LC107", f"leaves as {{0}}, the boundary is declared as {text}{shown}", (slot,)
        )

    def undeclared(self, of: Layout, slot: int) -> Issue | None:
        """What may not leave where nothing says what the reader expects."""
        return (
            self._leak(of, slot)
            or self._torn(of, slot)
            or self._padding(of, slot)
            or self._share(of, slot)
            or self._sharded(of, slot)
        )

    def _torn(self, of: Layout, slot: int) -> Issue | None:
        """Pieces of all tokens that a view joined with another axis instead of with each other, where nothing before says so."""
        if any(issue.code in ("LC104", "LC105") for _, _, issue in self.analysis.solution.issues):
            return None
        for i, axis in enumerate(of.axes):
            elsewhere = {f.domain for k, other in enumerate(of.axes) if k != i for f in other}
            parts = [f for f in axis if not f.is_whole and is_token_like(f.domain) and f.domain in elsewhere]
            if parts and len(axis) > 1:
                return Issue(
                    "LC105", "{0} leaves with its tokens in another order than they came in", (slot,)
                )
        return None

    def _padding(self, of: Layout, slot: int) -> Issue | None:
        """All tokens, gathered from padded shares, leave with their padding."""
        for axis in of.axes:
            if (
                len(axis) == 1
                and axis[0].is_whole
                and axis[0].domain.kind == "pad"
                and is_token_like(axis[0].domain)
            ):
                base = axis[0].domain.args[0]
                text = f"{{0}} leaves with padding rows behind its {base.extent} tokens: cut them off"
                return Issue("LC402", text, (slot,), () if base in self.cut_back else ("warning",))
        return None

    def _share(self, of: Layout, slot: int) -> Issue | None:
        """A rank's share of tokens that came in whole, where no output holds all of them: right only for a reader who knows."""
        for m, fs in of.bound:
            for b in fs:
                base = base_of(b.domain)
                if (
                    m in self.mesh.quotient
                    or not is_token_like(b.domain)
                    or base not in self.entered - self.left
                ):
                    continue
                share = f"{{0}} leaves as this rank's share over {self.mesh.group_name((m,))}"
                cut = self._meant_whole(self.analysis.program.inputs[self.call][slot], of)
                if cut:
                    text = (
                        f"{share}, though {cut} was to cut all {base.extent} tokens from it: gather it before"
                    )
                    return Issue("LC107", text, (slot,))
                if base in self.gathered:
                    text = f"{share} of tokens that came in whole: gather it, or declare the output's layout"
                    return Issue("LC107", text, (slot,), ("warning",))
        return None

    def _sharded(self, of: Layout, slot: int) -> Issue | None:
        """A shard of features that leaves: right only if the reader knows, which nothing here says.

        Scores of one rank's part of the vocabulary are wrong for whoever picks a token from them.
        """
        if of in self.kept:
            return None
        for m, fs in of.bound:
            if any(b.domain.is_feature for b in fs):
                cut = dict(bound_on_axis(of, of.rank - 1)).get(m) if of.rank else None
                part = cut is not None and cut.domain.extent in self.entries
                shard = (
                    f"part of the {cut.domain.extent} entries of the vocabulary" if part and cut else "shard"
                )
                text = f"{{0}} leaves as a {shard} over {self.mesh.group_name((m,))}: gather it, or declare the output's layout"
                return Issue("LC107", text, (slot,), () if part else ("warning",))
        return None

    def _leak(self, of: Layout, slot: int) -> Issue | None:
        """Sums that were not taken, and values that denote nothing."""
        group_name = self.mesh.group_name
        for m in of.partial:
            group = group_name((m,))
            if of.is_mixed(m):
                return Issue("LC203", f"{{0}} leaves with different tokens added up over {group}", (slot,))
            return Issue("LC201", f"{{0}} leaves as a pending sum over {group}: reduce it first", (slot,))
        for m, fs in of.bound:
            group = group_name((m,))
            if len(fs) > 1:
                return Issue(
                    "LC203", f"{{0}} leaves sharded by tokens and by features at once over {group}", (slot,)
                )
            for b in fs:
                if b.domain.is_feature and partner_axis(of, b) is None:
                    return Issue(
                        "LC201",
                        f"{{0}} leaves as one rank's part over {group} of what was to be summed",
                        (slot,),
                    )
        return None


def _whole_tokens(of: Layout) -> list[Factor]:
    """Token factors that an axis holds in full."""
    return [f for axis in of.axes for f in axis if f.is_whole and is_token_like(f.domain)]


def _held_whole(layouts: Iterable[object]) -> set[Domain]:
    return {base_of(f.domain) for of in layouts if isinstance(of, Layout) for f in _whole_tokens(of)}
