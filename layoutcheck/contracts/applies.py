"""Whether a contract speaks of a program at all."""

from __future__ import annotations

from layoutcheck.contracts.model import Contract
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.roles import Roles

NO_LAYER = "no decoder layer was found: no residual stream with attention on it"
_KINDS = {
    "sparse": "attention over keys that an indexer's top-k picked",
    "experts": "a mixture of experts",
}


def missing_group(analysis: Analysis, contract: Contract) -> str | None:
    """That a program has no such group of more than one rank, with those it has; None where it has."""
    group = analysis.mesh.groups.get(contract.group)
    if group is not None and group.axes:
        return None
    names = ", ".join(n for n, g in analysis.mesh.groups.items() if g.axes) or "none"
    return f"the graph has no group {contract.group} of more than one rank (its groups: {names})"


def other_kind(contract: Contract, roles: Roles) -> str | None:
    """What kind of decoder a contract is for, where a program is of another."""
    for condition, wanted in contract.applies:
        held = roles.is_sparse() if condition == "sparse" else any(b.kind == "moe" for b in roles.blocks)
        if held is not wanted:
            return f"for decoders {'with' if wanted else 'without'} {_KINDS[condition]}, and here is {'one' if held else 'none'}"
    return None
