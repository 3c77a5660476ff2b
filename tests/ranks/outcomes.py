"""A random program checked on every rank, and run on all of them beside the single device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layoutcheck.graph import Graph
from layoutcheck.infer.diagnosis.diagnose import is_error
from layoutcheck.infer.issues.boundary import boundary_issues
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.ranks.denote import close
from layoutcheck.ranks.interpreter import RankError, named_groups, run

from .programs import Program, Tape


@dataclass
class Outcome:
    """What the checker said and what running showed."""

    program: Program
    graphs: list[Graph]
    issues: list[str]
    equal: bool
    problem: str

    @property
    def clean(self) -> bool:
        return not self.issues

    def text(self) -> str:
        """The program as lines, for a failing test."""
        lines = [
            f"p={self.program.p} T={self.program.T} wrong={self.program.wrong} issues={self.issues} {self.problem}"
        ]
        for n in self.graphs[-1].nodes:
            layout = getattr(n.meta, "layout", "") if n.op == "placeholder" else ""
            lines.append(f"  {n.name} = {n.target} {n.args} {layout}")
        return "\n".join(lines)


def judged(graph: Graph) -> tuple[list[str], list[Any]]:
    """Codes of the errors in a graph, before they are sorted into causes and repairs, and the values' types."""
    a = analyse(graph)
    inside = [e for e in a.solution.issues if is_error(e[2])]
    # at the output, padding that leaves is a warning, and counts here: the output has other rows than declared
    found = [*inside, *boundary_issues(a, a.solution.typing)]
    return [f"{issue.code} at {a.program.nodes[k].name}" for k, _, issue in found], a.solution.typing.types


def issues_of(graphs: Sequence[Graph]) -> list[str]:
    """What is wrong in any rank's graph, and where ranks disagree on a type.

    A slice at a constant looks like a share from one rank, and from that one only, so one rank's graph does
    not tell all.
    """
    found = [judged(graph) for graph in graphs]
    issues = dict.fromkeys(issue for more, _ in found for issue in more)
    if any(types != found[0][1] for _, types in found):
        issues["types differ by rank"] = None
    return list(issues)


def outcome(numbers: Sequence[int], faults: bool) -> Outcome:
    """Build, check and run the program of a tape."""
    tape = Tape(numbers)
    program = Program(tape, faults)
    while not tape.ended and len(program.pool) < 24:
        program.step()
    graphs, last = program.finish()
    issues = issues_of(graphs)
    problem = ""
    try:
        outs = [r.outputs[0] for r in run(graphs, program.inputs, named_groups(graphs))]
        equal = all(close(x, last.whole) for x in outs)
    except RankError as error:
        equal, problem = False, str(error)
    return Outcome(program, graphs, issues, equal, problem)
