"""A careless program checked on every rank and on all of them together, and what it claims of its last value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layoutcheck.infer.diagnosis.diagnose import is_error
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.layouts import Layout
from layoutcheck.ranks.denote import Ranks, Undenoted, close, join, placement

from .careless import Careless, Held
from .careless_steps import STEPS
from .outcomes import issues_of
from .programs import Tape

MOST_CALLS, MOST_STEPS = 24, 40
MOVED = ("range", "prefix", "permuted", "pick", "concat", "opaque", "repeat", "routed")
"""Domains that name other rows than an input's; of them no claim is made that one device's value could contradict."""


@dataclass
class Outcome:
    """`claim` is `right`, `none` (the layout stands for no value of one device), or what is wrong with it."""

    program: Careless
    last: Held
    issues: list[str]
    claim: str

    def text(self) -> str:
        """The calls that the last value comes from."""
        needed = {self.last.name}
        for node in reversed(self.program.nodes[-1]):
            if node.name in needed:
                needed |= set(node.refs())
        lines = [f"p={self.program.p} T={self.program.T} {self.claim}"]
        for node in self.program.nodes[-1]:
            if node.name in needed or "_." in node.target:
                layout = getattr(node.meta, "layout", "") if node.op == "placeholder" else ""
                lines.append(f"  {node.name} = {node.target} {node.args} {layout}")
        return "\n".join(lines)


def outcome(numbers: Sequence[int]) -> Outcome:
    """Build and run the program of a tape, and check it."""
    tape = Tape(numbers)
    program = Careless(tape, STEPS)
    for _ in range(MOST_STEPS):
        if tape.ended or sum(n.op == "call_function" for n in program.nodes[0]) >= MOST_CALLS:
            break
        program.step()
    graphs, last = program.finish()
    issues = issues_of(graphs)
    if not issues:  # what one rank's graph does not tell, all of them do
        together = analyse(graphs[0], others=graphs[1:])
        issues = [issue.code for _, _, issue in together.apart]
        issues += [e[2].code for e in together.solution.issues if is_error(e[2])]
    if issues:
        return Outcome(program, last, issues, "none")
    a = analyse(graphs[0])
    value = a.program.by_name.get(last.name)
    of = a.solution.typing.types[value] if value is not None else None
    ranks = Ranks(tuple(x.size for x in a.mesh.axes if isinstance(x.size, int)))
    return Outcome(program, last, [], _claim(program, last, of, ranks))


def _claim(program: Careless, last: Held, of: object, ranks: Ranks) -> str:
    if not isinstance(of, Layout) or ranks.world not in (1, program.p):
        return "none"
    moved = any(f.domain.kind in MOVED for axis in of.axes for f in axis)
    try:
        if placement(of, ranks).off or (program.pad and moved):
            return "none"
        got = join(last.ranks[: ranks.world], of, ranks)
    except Undenoted as error:
        return "none" if "same group" in str(error) else f"wrong: {error}"
    want = last.whole
    if program.pad and sum(n != m for n, m in zip(got.shape, want.shape)) == 1 and got.dim() == want.dim():
        for d, (n, m) in enumerate(zip(got.shape, want.shape)):
            if n == m + program.pad:
                got = got.narrow(d, 0, m)
            elif n != m:
                return "none"  # padding between the rows
    return "right" if close(got, want) else f"wrong: {tuple(got.shape)} for {tuple(want.shape)}"
