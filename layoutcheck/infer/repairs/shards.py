"""Weights as operands: whole ones read as shards, shards made whole. Neither sends anything."""

from __future__ import annotations

import attrs

from layoutcheck.domains import feature
from layoutcheck.infer.repairs.conversions import Conversion, all_groups
from layoutcheck.infer.repairs.prices import FREE
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.layouts import Layout, extent_of, render, replace
from layoutcheck.program import CALL, PLACEHOLDER
from layoutcheck.transforms.rank_shares import take_share


def weight_behind(analysis: Analysis, value: int) -> int | None:
    """The weight that a value is a view of, None for anything else."""
    p = analysis.program
    at = value
    for _ in range(16):
        k = p.value_call[at]
        if p.kind[k] == PLACEHOLDER:
            return at if analysis.plan.roles.get(at) == "weight" else None
        transform = transform_of(p.instances[p.op[k]]) if p.kind[k] == CALL else None
        if transform is None or not transform.is_view or len(p.inputs[k]) != 1:
            return None
        at = p.inputs[k][0]
    return None


def replicated(way: Conversion) -> Conversion:
    """The whole weight where a gather of its shards would do: a matter of loading it, not of sending it."""
    return attrs.evolve(way, text=f"replicate {{}} over {way.group} first", cost=FREE)


def as_shard(analysis: Analysis, of: Layout) -> list[Conversion]:
    """A declared weight read as a shard along each of its axes."""
    out = []
    for group in all_groups(analysis):
        if not all(of.is_full(m) for m in group.axes):
            continue
        for dim, axis in enumerate(of.axes):
            if not axis or not all(f.domain.is_feature for f in axis):
                continue
            extent = extent_of(axis)
            cut = take_share(
                feature(extent * group.size).whole,
                group,
                extent,
                [analysis.mesh.size(m) for m in group.axes],
            )
            if cut is None:
                continue
            bound = {**of.bound_map, **{m: (b,) for m, b in cut[1].items()}}
            shard = replace(of, axes=(*of.axes[:dim], (cut[0],), *of.axes[dim + 1 :]), bound=bound)
            shown = render(shard, analysis.mesh.names())
            text = f"declare {{}} as {shown[shown.index('[') :]}"
            out.append(Conversion(shard, text, "declare", group.name))
    return out
