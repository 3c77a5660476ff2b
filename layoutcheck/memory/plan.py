"""What is asked for: an engine profile with its options, the group sizes, and the rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from layoutcheck.memory.parallel import Parallel


@dataclass(frozen=True)
class Plan:
    """How a model is deployed.

    Attributes:
        parallel: group sizes.
        engine: name or file of an engine profile.
        modes: switches of the profile, such as ``dsa-cp``.
        rank: of the ledger.
        mtp: count the layers for multi-token prediction; None is what the profile says.
        embedding: ``replicated`` or ``vocab``; None is what the profile says.
        distribute: modules whose layers are spread over the tp ranks (``q_b_proj``).
        gather: modules that stay divided although a mode wants them whole, gathered into a buffer.
        whole, divided: further patterns of modules that are whole, or divided after all.
        derived: count weights that are made after load.
        companions: ``full``, ``scalars`` or ``none``; None is what the profile says.
        max_tokens: tokens of a step, for buffers that are sized by it.
    """

    parallel: Parallel = field(default_factory=Parallel)
    engine: str = "vllm-ascend"
    modes: tuple[str, ...] = ()
    rank: int = 0
    mtp: bool | None = None
    embedding: str | None = None
    distribute: tuple[str, ...] = ()
    gather: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()
    derived: bool = True
    companions: str | None = None
    max_tokens: int = 8192

    def but(self, **changes: Any) -> Plan:
        """Return the plan with some things changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        parts = [str(self.parallel), self.engine, *self.modes]
        if self.embedding:
            parts.append(f"embedding {self.embedding}")
        if self.mtp is not None:
            parts.append("with MTP" if self.mtp else "without MTP")
        parts += [f"{module} distributed over layers" for module in self.distribute]
        parts += [f"{module} gathered" for module in self.gather]
        parts += [f"{pattern} whole" for pattern in self.whole]
        parts += [f"{pattern} divided" for pattern in self.divided]
        if not self.derived:
            parts.append("no derived weights")
        if self.companions:
            parts.append(f"companions {self.companions}")
        return ", ".join(parts)
