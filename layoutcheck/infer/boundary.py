"""The graph's output: nothing pending may leave, and declared layouts must hold."""

from __future__ import annotations

from layoutcheck.domains import is_token_like
from layoutcheck.graph import TensorMeta
from layoutcheck.infer.analysis import Analysis
from layoutcheck.infer.call import Issue
from layoutcheck.infer.run import Key, Typing
from layoutcheck.layout_text import parse_layout
from layoutcheck.layouts import Layout, partner_axis, render
from layoutcheck.program import OUTPUT


def boundary_issues(analysis: Analysis, typing: Typing) -> list[tuple[int, Key, Issue]]:
    """Issues at the output node."""
    p = analysis.program
    mesh = analysis.mesh
    out: list[tuple[int, Key, Issue]] = []
    for k, kind in enumerate(p.kind):
        if kind != OUTPUT:
            continue
        ins = p.inputs[k]
        key: Key = ("output", *[typing.types[v] for v in ins])
        meta = p.nodes[k].meta
        metas = list(meta) if isinstance(meta, tuple) else [meta] * (1 if len(ins) == 1 else 0)
        for slot, value in enumerate(ins):
            of = typing.types[value]
            if not isinstance(of, Layout):
                continue
            declared = metas[slot] if slot < len(metas) else None
            text = declared.layout if isinstance(declared, TensorMeta) else None
            issue: Issue | None = None
            if text is not None:
                shape = tuple(of.shape)
                try:
                    wanted = parse_layout(
                        text, mesh, of.dtype, shape, p.nodes[k].name, dict(analysis.plan.names)
                    )
                except ValueError:
                    wanted = None
                if wanted is None or (wanted.axes, wanted.bound, wanted.partial) != (
                    of.axes,
                    of.bound,
                    of.partial,
                ):
                    issue = Issue(
                        "LC107",
                        f"leaves as {{0}}, the boundary is declared as {text}"
                        + (f" ({render(wanted, mesh.names())})" if wanted is not None else ""),
                        (slot,),
                    )
                if issue is not None:
                    issue = _leak(mesh.group_name, of, slot) or issue
            else:
                issue = (
                    _leak(mesh.group_name, of, slot)
                    or _padding(of, slot)
                    or _sharded(mesh.group_name, of, slot)
                )
            if issue is not None:
                out.append((k, key, issue))
    return out


def _sharded(group_name: object, of: Layout, slot: int) -> Issue | None:
    """A shard of features that leaves: right only if the reader knows, which nothing here says."""
    for m, fs in of.bound:
        if any(b.domain.is_feature for b in fs):
            group = group_name((m,))  # type: ignore[operator]
            text = f"{{0}} leaves as a shard over {group}: gather it, or declare the output's layout"
            return Issue("LC107", text, (slot,), ("warning",))
    return None


def _padding(of: Layout, slot: int) -> Issue | None:
    """All tokens, gathered from padded shares, leave with their padding."""
    for axis in of.axes:
        if (
            len(axis) == 1
            and axis[0].is_whole
            and axis[0].domain.kind == "pad"
            and is_token_like(axis[0].domain)
        ):
            base = axis[0].domain.args[0]
            return Issue(
                "LC402",
                f"{{0}} leaves with padding rows behind its {base.extent} tokens: cut them off",
                (slot,),
                ("warning",),
            )
    return None


def _leak(group_name: object, of: Layout, slot: int) -> Issue | None:
    for m in of.partial:
        group = group_name((m,))  # type: ignore[operator]
        if of.is_mixed(m):
            return Issue("LC203", f"{{0}} leaves with different tokens added up over {group}", (slot,))
        return Issue("LC201", f"{{0}} leaves as a pending sum over {group}: reduce it first", (slot,))
    for m, fs in of.bound:
        group = group_name((m,))  # type: ignore[operator]
        if len(fs) > 1:
            return Issue(
                "LC203", f"{{0}} leaves sharded by tokens and by features at once over {group}", (slot,)
            )
        for b in fs:
            if b.domain.is_feature and partner_axis(of, b) is None:
                return Issue(
                    "LC201", f"{{0}} leaves as one rank's part over {group} of what was to be summed", (slot,)
                )
    return None
