"""The rule notation in one place: the types, `parse` and `format_rules`.

`parse(text, where)` reads stanzas (see docs/rules.md), `format_rules(rules)` writes them in canonical form.
"""

from __future__ import annotations

from layoutcheck.rules.parser import DTYPES, KEYWORDS, parse
from layoutcheck.rules.printer import format_pattern, format_rule, format_rules
from layoutcheck.rules.types import (
    Any,
    Axis,
    AxisPattern,
    Label,
    OperandPattern,
    OutputPattern,
    Param,
    Pattern,
    Rule,
    Unit,
    Variadic,
)

__all__ = [
    "DTYPES",
    "KEYWORDS",
    "Any",
    "Axis",
    "AxisPattern",
    "Label",
    "OperandPattern",
    "OutputPattern",
    "Param",
    "Pattern",
    "Rule",
    "Unit",
    "Variadic",
    "format_pattern",
    "format_rule",
    "format_rules",
    "parse",
]
