"""Pieces of text that several renderings share."""

from __future__ import annotations

from collections.abc import Iterable

from layoutcheck.findings import Finding, Fix, Severity


def printable(text: str) -> str:
    """Return ``text`` with control characters spelt out: names come from files that may be hostile."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def plural(count: int, noun: str) -> str:
    """Return ``"1 error"``, ``"2 errors"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def headline(finding: Finding) -> str:
    """Return where a finding is: the module path with the node, and the operand to blame."""
    place = f"{finding.module}.{finding.node}" if finding.module else finding.node
    return printable(place if finding.operand is None else f"{place}, operand {finding.operand}")


def printable_lines(text: str) -> str:
    """Return ``text`` with its lines kept and each of them printable."""
    return "\n".join(map(printable, text.splitlines()))


def price(fix: Fix) -> str:
    """Return what a repair costs in wire bytes on a rank, such as ``+ 2*T*h bytes, x 78``; what it saves
    has a minus sign. What changes no program, such as a rule to paste, has no bytes and no price."""
    if fix.bytes == "":
        return ""
    if fix.bytes == "0":
        cost = "0 bytes"
    elif fix.bytes.startswith("-"):
        cost = f"- {fix.bytes[1:].lstrip()} bytes"
    else:
        cost = f"+ {fix.bytes} bytes"
    return printable(cost if fix.times == 1 else f"{cost}, x {fix.times}")


def fix_line(fix: Fix) -> str:
    """Return a repair with its price in brackets, where it has one."""
    text, cost = printable_lines(fix.text).rstrip(), price(fix)
    return f"{text} ({cost})" if cost else text


def path_line(finding: Finding) -> str:
    """Return the path from the origin to the first divergence on one line."""
    steps = [f"{step.node} {step.text}".strip() for step in finding.path]
    return printable(" -> ".join(steps)) + ("  <- first divergence" if steps else "")


def summary(findings: Iterable[Finding]) -> str:
    """Return the closing line, such as ``Found 2 errors, 1 warning; 14 follow from them.``"""
    listed = list(findings)
    if not listed:
        return "No findings."
    counts = [(sum(f.severity is s for f in listed), s.value) for s in Severity]
    said = ", ".join(plural(count, noun) for count, noun in counts if count)
    follow = sum(len(f.consequences) for f in listed)
    if not follow:
        return f"Found {said}."
    verb = "follows" if follow == 1 else "follow"
    return f"Found {said}; {follow} {verb} from {'it' if len(listed) == 1 else 'them'}."
