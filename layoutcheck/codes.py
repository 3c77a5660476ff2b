"""The table of finding codes. A code never changes its meaning; a new meaning gets a new code."""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class Severity(str, Enum):
    """How much a finding matters: errors give wrong numbers, warnings cost or mislead, notes inform."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@frozen
class CodeInfo:
    """A finding code with its name, the severity it has unless trusted away, and a line about it."""

    code: str
    name: str
    severity: Severity
    summary: str


def _table(severity: Severity, rows: dict[str, tuple[str, str]]) -> dict[str, CodeInfo]:
    return {code: CodeInfo(code, name, severity, summary) for code, (name, summary) in rows.items()}


_ERRORS = _table(
    Severity.ERROR,
    {
        "LC101": ("layout-mismatch", "operands that are joined hold different layouts"),
        "LC102": ("wrong-tokens", "a slice has the right size and the wrong tokens"),
        "LC103": ("gather-of-full", "an all_gather of a value that every rank already holds whole"),
        "LC104": ("wrong-dimension", "a collective runs along a dimension that is not the split one"),
        "LC105": ("gather-order", "a gather would put the tokens into the wrong order"),
        "LC106": ("needs-full", "an op that mixes over an axis gets only this rank's share of it"),
        "LC107": ("boundary-mismatch", "a value is handed on in another layout than its receiver holds"),
        "LC108": ("index-domain", "an index points into other tokens than the tensor it is used on holds"),
        "LC201": ("partial-leak", "a pending sum reaches an op that is not linear, or an output"),
        "LC202": ("reduce-of-complete", "a reduction of a value that is already complete"),
        "LC203": ("mixed-tokens", "a reduction or merge adds different tokens"),
        "LC204": ("bias-per-rank", "a term is added once a rank where it belongs once, or the reverse"),
        "LC205": ("contraction-mismatch", "the two sides of a contraction are split differently"),
        "LC301": ("group-mismatch", "a collective runs over another group than the value is split over"),
        "LC401": ("uneven-tokens", "the tokens do not divide evenly and the graph relies on it"),
        "LC402": ("unmasked-padding", "padding tokens are used as if they were real"),
        "LC403": ("empty-slice", "a slice leaves nothing of what this rank needs"),
        "LC501": ("too-full", "a boundary holds more than its contract allows"),
        "LC502": ("too-local", "a boundary holds less than its contract requires"),
        "LC503": ("wrong-conversion", "a boundary is reached by another conversion than its contract names"),
        "LC504": ("collective-count", "a layer has more or fewer collectives than its contract counts"),
        "LC505": ("carried-layout", "a layer hands the next one another layout than its contract carries"),
        "LC506": ("contract-not-applied", "a contract was asked for and nothing in the graph matched it"),
        "LC901": ("unknown-op", "no rule says what an op does to layouts"),
        "LC903": ("malformed-graph", "the graph contradicts itself, or an op is called with wrong operands"),
    },
)
_WARNINGS = _table(
    Severity.WARNING,
    {
        "LC601": ("redundant-collective", "a collective whose result is already there"),
        "LC602": ("replicated-dispatch", "every rank dispatches the same tokens, the work is done p times"),
        "LC902": ("stale-shape", "a recorded shape is not the one that the ops give"),
    },
)

CODES: dict[str, CodeInfo] = dict(sorted({**_ERRORS, **_WARNINGS}.items()))
