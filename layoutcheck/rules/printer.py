"""Rules back to text, in one canonical form: `parse(format_rules(rules))` gives equal rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from layoutcheck.rules.types import (
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

__all__ = ["format_pattern", "format_rule", "format_rules"]


def format_rules(rules: Iterable[Rule]) -> str:
    """The stanzas of these rules, with a blank line between them."""
    return "\n".join(format_rule(rule) for rule in rules)


def format_rule(rule: Rule) -> str:
    """One stanza, ending in a newline."""
    lines = [f"{rule.target}({', '.join(map(_param, rule.params))})"]
    if rule.kind == "factors":
        operands = ", ".join(map(_operand, rule.operands))
        lines.append(f"{operands} -> {', '.join(map(_output, rule.outputs))}".lstrip())
    elif rule.kind == "elementwise":
        lines.append(" ".join(["elementwise", *(f"{key}={name}" for key, name in rule.options.items())]))
    else:
        lines.append(_code("code", str(rule.code), rule.options))
    lines.extend(_code("then", name, options) for name, options in rule.then)
    order = rule.param_names
    for keyword, names in (
        ("linear", rule.linear),
        ("additive", rule.additive),
        ("addend", rule.addends),
        ("weight", rule.weights),
        ("whole", rule.whole),
    ):
        if names:
            lines.append(" ".join([keyword, *(name for name in order if name in names)]))
    if rule.mutates:
        lines.append(" ".join(["mutates", *rule.mutates]))
    lines.extend(f"scale {scale} of {value}" for scale, value in rule.scales.items())
    if rule.outdtypes:
        lines.append(" ".join(["outdtype", *(word or "-" for word in rule.outdtypes)]))
    if rule.widens:
        lines.append(" ".join(["widens", *rule.widens]))
    lines.extend(f"into {index} {label}" for index, label in rule.into.items())
    lines.extend(f"causal {argument} {label}" for argument, label in rule.causal.items())
    if rule.part:
        lines.append(" ".join(["part", *rule.part]))
    if rule.doc:
        lines.append(f"doc {rule.doc}")
    return "\n    ".join(lines) + "\n"


def format_pattern(pattern: Pattern, new: Mapping[str, str] | None = None) -> str:
    """The axes of one tensor, as the notation writes them."""
    if not pattern.axes:
        return "()"
    return " ".join(_axis(axis, new or {}) for axis in pattern.axes)


def _param(param: Param) -> str:
    if param.rest:
        return f"*{param.name}"
    return param.name if param.required else f"{param.name}={param.default!r}"


def _operand(operand: OperandPattern) -> str:
    marks = ("[]" if operand.is_list else "") + ("?" if operand.optional else "")
    return f"{operand.param}{marks}: {format_pattern(operand.pattern, operand.sizes)}"


def _output(output: OutputPattern) -> str:
    if output.kind == "none":
        return "-"
    if output.kind == "same":
        return f"={output.same_as}"
    assert output.pattern is not None
    return format_pattern(output.pattern, output.new)


def _axis(axis: AxisPattern, new: Mapping[str, str]) -> str:
    if isinstance(axis, Variadic):
        return f"{_label(axis.label, new)}.."
    if isinstance(axis, Axis):
        labels = [_label(label, new) for label in axis.labels]
        return labels[0] if len(labels) == 1 else f"({' '.join(labels)})"
    return "1" if isinstance(axis, Unit) else "*"


def _label(label: Label, new: Mapping[str, str]) -> str:
    mark = "!" if label.whole else ""
    size = f"={new[label.name]}" if label.name in new else ""
    return f"{label.name}{mark}{size}"


def _code(keyword: str, name: str, options: Mapping[str, str]) -> str:
    return " ".join([keyword, name, *(f"{key}={value}" for key, value in options.items())])
