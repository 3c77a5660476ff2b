"""Findings and reports: what a check says, as data. Renderings are in :mod:`layoutcheck.reports`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from attrs import evolve, field, frozen

from layoutcheck.codes import CODES as CODES
from layoutcheck.codes import CodeInfo as CodeInfo
from layoutcheck.codes import Severity as Severity


class Evidence(str, Enum):
    """How the layout of a value came to be known, strongest first."""

    DERIVED = "derived"
    DECLARED = "declared"
    INFERRED = "inferred"
    DEFAULTED = "defaulted"


@frozen
class Operand:
    """One operand of a finding's node: which it is, what it holds, and where that came from."""

    name: str
    index: int
    layout: str
    origin: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, "index": self.index, "layout": self.layout, "origin": self.origin}


@frozen
class Step:
    """One step of the path from where a value began to where it went wrong."""

    node: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"node": self.node, "text": self.text}


@frozen
class Fix:
    """A repair.

    ``bytes`` is the wire traffic that it adds on a rank, as a formula in the graph's symbols (``"0"``
    for none), paid ``times`` times. ``verified`` says that the repaired graph was checked again and that
    the finding was gone and no other had come. ``leaves`` are the ``(code, node)`` pairs of those that had.
    """

    text: str
    bytes: str = "0"
    times: int = 1
    verified: bool = False
    leaves: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "text": self.text,
            "bytes": self.bytes,
            "times": self.times,
            "verified": self.verified,
            "leaves": [{"code": code, "node": node} for code, node in self.leaves],
        }


@frozen
class Place:
    """A line of the source that the exporter recorded for a node. ``line`` counts from 1."""

    file: str
    line: int | None = None
    function: str = ""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"file": self.file, "line": self.line, "function": self.function}


def as_place(value: Any) -> Place | None:
    """Return ``value`` as a :class:`Place`; anything that has a ``file`` and a ``line`` will do."""
    if value is None or isinstance(value, Place):
        return value
    return Place(str(value.file), value.line, str(getattr(value, "function", "") or ""))


def _text(value: str | None) -> str:
    return value or ""


@frozen
class Finding:
    """One root cause.

    ``operands``, ``path`` and ``fixes`` explain it; ``consequences`` are the ``(code, node)`` pairs that
    go away with it and are counted under it; ``caused_by`` names the node of another finding that this one
    follows from, where that one is reported on its own. ``operand`` is the operand that is to blame, if one
    is. ``details`` are further lines for a reader, such as a counter-example; ``graph`` is the file.
    ``counter_example`` is what running the graph on ranks has shown, where that was asked for.
    """

    code: str = field()
    node: str
    message: str
    severity: Severity = field()
    module: str = field(default="", converter=_text)
    location: Place | None = field(default=None, converter=as_place)
    operands: tuple[Operand, ...] = ()
    path: tuple[Step, ...] = ()
    fixes: tuple[Fix, ...] = ()
    caused_by: str | None = None
    consequences: tuple[tuple[str, str], ...] = ()
    operand: int | None = None
    details: tuple[str, ...] = ()
    graph: str = ""
    counter_example: dict[str, Any] | None = field(default=None, hash=False)

    def __repr__(self) -> str:
        """The code, the place and the beginning of the message; `str` gives all of it."""
        text = self.message if len(self.message) <= 60 else f"{self.message[:57]}..."
        return f"<Finding {self.code} {self.name} at {self.node}: {text!r}>"

    def __str__(self) -> str:
        """The finding as the text report prints it."""
        from layoutcheck.reports.text import finding_text  # a rendering: loaded where one is asked for

        return finding_text(self)

    @severity.default
    def _default_severity(self) -> Severity:
        # An unknown code gets past here, for the validator to complain about.
        return CODES[self.code].severity if self.code in CODES else Severity.ERROR

    @code.validator
    def _known(self, _attribute: object, value: str) -> None:
        if value not in CODES:
            raise ValueError(f"unknown finding code {value!r}")

    @property
    def name(self) -> str:
        """The code's name in words, such as ``wrong-tokens``."""
        return CODES[self.code].name

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; its keys are stable within one report version."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity.value,
            "node": self.node,
            "module": self.module,
            "location": None if self.location is None else self.location.to_dict(),
            "message": self.message,
            "operands": [operand.to_dict() for operand in self.operands],
            "path": [step.to_dict() for step in self.path],
            "fixes": [fix.to_dict() for fix in self.fixes],
            "caused_by": self.caused_by,
            "consequences": [{"code": code, "node": node} for code, node in self.consequences],
            **({} if self.counter_example is None else {"counter_example": self.counter_example}),
        }


@frozen
class Unchecked:
    """A graph that was asked for and could not be checked: its path, and why in one sentence."""

    graph: str
    error: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"graph": self.graph, "error": self.error}


@frozen
class Statistics:
    """Counts of values by how their layout became known, and CPU seconds by stage."""

    nodes: int = 0
    values: int = 0
    derived: int = 0
    declared: int = 0
    inferred: int = 0
    defaulted: int = 0
    seconds: dict[str, float] = field(factory=dict, eq=False)
    notes: tuple[str, ...] = ()

    def share(self, evidence: Evidence) -> float:
        """Return the share (0 to 1) of the values whose layout became known that way; 0 without values."""
        total = self.derived + self.declared + self.inferred + self.defaulted
        return float(getattr(self, evidence.value)) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "nodes": self.nodes,
            "values": self.values,
            **{evidence.value: getattr(self, evidence.value) for evidence in Evidence},
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


def _write(layout: Any) -> str:
    from layoutcheck.layouts import Layout, render

    return render(layout) if isinstance(layout, Layout) else str(layout)


@frozen
class Report:
    """What a check found in one graph.

    ``layout_lookup`` maps a value's name to its layout, and ``layout_writer`` a layout to its text with the
    graph's own names of groups; the inference attaches both. ``inferred`` are the layouts that were concluded
    rather than derived (weights, inputs), as ``(name, text)`` pairs. ``unused`` are the plan's patterns that fit no
    weight, each with the names that look like it.
    """

    findings: tuple[Finding, ...] = ()
    statistics: Statistics = field(factory=Statistics)
    graph_path: str = ""
    inferred: tuple[tuple[str, str], ...] = ()
    layout_lookup: Callable[[str], Any] | None = field(default=None, eq=False, repr=False)
    layout_writer: Callable[[Any], str] = field(default=_write, eq=False, repr=False)
    graph_maker: Callable[[], Any] | None = field(default=None, eq=False, repr=False)
    unused: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __repr__(self) -> str:
        """What was checked and how much was found; `str` gives the text report."""
        counts = ", ".join(
            f"{len(found)} {kind}"
            for kind, found in (("errors", self.errors), ("warnings", self.warnings), ("notes", self.notes))
        )
        return f"<Report {self.graph_path or 'of a graph'}: {counts}; {self.statistics.nodes} nodes>"

    def __str__(self) -> str:
        """The report as `layoutcheck check` prints it."""
        from layoutcheck.reports.text import render  # a rendering: loaded where one is asked for

        return render([self]).rstrip("\n")

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity error."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings of severity warning."""
        return tuple(f for f in self.findings if f.severity is Severity.WARNING)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings of severity note."""
        return tuple(f for f in self.findings if f.severity is Severity.NOTE)

    def exit_code(self, strict: bool = False) -> int:
        """Return 1 if there is an error (``strict``: or a warning), else 0."""
        return int(bool(self.errors) or (strict and bool(self.warnings)))

    def layout_of(self, name: object) -> Any:
        """Return the layout of a value, named by its text or by an object with a ``name``.

        Raises:
            KeyError: the graph has no such value, or the report carries no layouts.
        """
        key = name if isinstance(name, str) else str(getattr(name, "name", name))
        if self.layout_lookup is None:
            raise KeyError(f"{key}: this report carries no layouts")
        return self.layout_lookup(key)

    def layout_text(self, name: object) -> str | None:
        """Return the printed form of a value's layout, such as ``bf16[T/16@tp, 6144]``, or None if there is
        no such value."""
        try:
            layout = self.layout_of(name)
        except KeyError:
            return None
        return None if layout is None else self.layout_writer(layout)

    def dataflow(self) -> Any:
        """Return the annotated graph as a ``networkx.MultiDiGraph``: nodes with their printed layouts, an edge a use.

        Raises:
            ValueError: the report does not come from a check.
        """
        if self.graph_maker is None:
            raise ValueError("this report carries no graph")
        return self.graph_maker()

    def filtered(self, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> Report:
        """Return the report with only the findings whose code has a prefix in ``select`` and none in
        ``ignore``. Of two prefixes that fit, the longer one decides; no ``select`` means all."""
        selected, ignored = tuple(select), tuple(ignore)

        def keep(code: str) -> bool:
            wanted = max((len(p) for p in selected if code.startswith(p)), default=-1 if selected else 0)
            unwanted = max((len(p) for p in ignored if code.startswith(p)), default=-1)
            return wanted > unwanted

        return evolve(self, findings=tuple(f for f in self.findings if keep(f.code)))
