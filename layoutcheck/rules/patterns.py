"""Factor rules: `self: t k, mat2: k n -> t n`, parsed without knowing the header's parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from layoutcheck.rules.places import Mistake, Place, Segment, Token
from layoutcheck.rules.types import Any, Axis, AxisPattern, Label, OutputPattern, Pattern, Unit, Variadic

__all__ = ["FactorRule", "Operand", "Output", "Segment", "Token", "parse_factor_rule"]

_TOKEN = re.compile(r"\s*(?:(->|\.\.|\[\]|[A-Za-z_]\w*|[0-9]+|[()!?:,=*\-])|(\S))")
_IDENTIFIER = re.compile(r"[A-Za-z_]")


@attrs.frozen
class Operand:
    """An operand as written; `name` is None where it is given by its position, `words` as for outputs."""

    name: str | None
    optional: bool
    is_list: bool
    pattern: Pattern
    sizes: dict[str, str]
    words: tuple[Token, ...]
    place: Place


@attrs.frozen
class Output:
    """An output as written; `words` are the parameters that it names, with their places."""

    pattern: OutputPattern
    words: tuple[Token, ...]
    place: Place


@attrs.frozen
class FactorRule:
    """A parsed factor rule; its labels are checked, its parameter names are not."""

    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    labels: frozenset[str]


class _Cursor:
    """A token list with a position; `end` is the place behind the last token."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.tokens: list[Token] = []
        self.at = 0
        self.end: Place = (0, 0)
        for line, column, text in segments:
            self.end = (line, column + len(text))
            for match in _TOKEN.finditer(text):
                token, wrong = match.groups()
                if wrong:
                    raise Mistake(f"{wrong!r} has no meaning in a rule", (line, column + match.start(2)))
                if token:
                    self.tokens.append((token, line, column + match.start(1)))

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def place(self) -> Place:
        return self.tokens[self.at][1:] if self.at < len(self.tokens) else self.end

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False


@attrs.define
class _Labels:
    """What the operands of one rule have said about labels so far."""

    variadic: dict[str, bool] = attrs.Factory(dict)

    def note(self, label: Label, variadic: bool, place: Place) -> None:
        before = self.variadic.setdefault(label.name, variadic)
        if before != variadic:
            raise Mistake(
                f"the label {label.name} stands for one axis here and for any number (..) there", place
            )


def parse_factor_rule(segments: Sequence[Segment]) -> FactorRule:
    """A factor rule from its line (or lines). Raises Mistake at the first fault."""
    cursor = _Cursor(segments)
    labels = _Labels()
    operands: list[Operand] = []
    if cursor.peek() != "->":
        operands.append(_operand(cursor, labels))
        while cursor.accept(","):
            operands.append(_operand(cursor, labels))
    if not cursor.accept("->"):
        _unexpected(cursor, "a comma or ->")
    known = frozenset(labels.variadic)
    outputs = [_output(cursor, labels, known)]
    while cursor.accept(","):
        outputs.append(_output(cursor, labels, known))
    if cursor.at < len(cursor.tokens):
        if cursor.peek() == "->":
            raise Mistake("a rule has one ->", cursor.place())
        _unexpected(cursor, "a comma or the end of the line")
    named = [operand.name is not None for operand in operands]
    if any(named) and not all(named):
        place = operands[named.index(False)].place
        raise Mistake("either every operand has its name or none has", place)
    new = (name for output in outputs for name in output.pattern.new)
    return FactorRule(tuple(operands), tuple(outputs), known.union(new))


def _unexpected(cursor: _Cursor, wanted: str) -> None:
    found = cursor.peek()
    if not found:
        raise Mistake(f"the rule ends where {wanted} should follow", cursor.place())
    if found == ")":
        raise Mistake("this parenthesis closes nothing", cursor.place())
    raise Mistake(f"{found!r} stands where {wanted} should follow", cursor.place())


def _operand(cursor: _Cursor, labels: _Labels) -> Operand:
    place = cursor.place()
    name, optional, is_list = None, False, False
    ahead = 1
    if _IDENTIFIER.match(cursor.peek()):
        is_list = cursor.peek(ahead) == "[]"
        ahead += is_list
        optional = cursor.peek(ahead) == "?"
        ahead += optional
        if cursor.peek(ahead) == ":":
            name = cursor.peek()
            cursor.at += ahead + 1
        elif is_list or optional:
            raise Mistake("[] and ? belong to an operand with a name, as in `name[]?: axes`", place)
    pattern, sizes, words = _axes(cursor, labels, None)
    return Operand(name, optional, is_list, pattern, sizes, tuple(words), place)


def _output(cursor: _Cursor, labels: _Labels, known: frozenset[str]) -> Output:
    place = cursor.place()
    if cursor.accept("-"):
        return Output(OutputPattern("none"), (), place)
    if cursor.accept("="):
        if not _IDENTIFIER.match(cursor.peek()):
            raise Mistake("= needs the name of an operand, as in `=residual`", cursor.place())
        word = cursor.take()
        return Output(OutputPattern("same", same_as=word[0]), (word,), place)
    pattern, new, words = _axes(cursor, labels, known)
    return Output(OutputPattern("tensor", pattern, None, new), tuple(words), place)


def _axes(
    cursor: _Cursor, labels: _Labels, known: frozenset[str] | None
) -> tuple[Pattern, dict[str, str], list[Token]]:
    """Axes up to a comma, `->` or the end. `known` are the operands' labels, None inside an operand."""
    axes: list[AxisPattern] = []
    here: set[str] = set()
    new: dict[str, str] = {}
    words: list[Token] = []

    def label(in_group: bool) -> AxisPattern | Label:
        name, line, column = cursor.take()
        place = (line, column)
        whole = cursor.accept("!")
        if name in here:
            raise Mistake(
                f"the label {name} stands twice on one tensor; two instances need two labels", place
            )
        here.add(name)
        variadic = cursor.accept("..")
        if variadic and (axes or in_group):
            raise Mistake(f"{name}.. stands for leading axes and must come first", place)
        found = Label(name, whole)
        if known is not None and whole:
            raise Mistake(f"the mark ! of {name} belongs to an operand, not to an output", place)
        if cursor.accept("="):
            if known is not None and name in known:
                raise Mistake(f"{name} is on an operand already; its size belongs there", place)
            if variadic or not _IDENTIFIER.match(cursor.peek()):
                raise Mistake(f"{name}= needs the name of a parameter that holds its extent", cursor.place())
            word = cursor.take()
            new[name] = word[0]
            words.append(word)
        elif known is not None and name not in known:
            raise Mistake(f"the label {name} is on no operand; write {name}=param if it is new", place)
        if known is None or name in known:
            labels.note(found, variadic, place)
        return Variadic(found) if variadic else found

    if cursor.peek() == "(" and cursor.peek(1) == ")":
        cursor.at += 2
        return Pattern(()), new, words
    while True:
        token, place = cursor.peek(), cursor.place()
        if token == "*":
            cursor.at += 1
            if not cursor.accept(".."):
                axes.append(Any())
            elif axes:
                raise Mistake("*.. stands for leading axes and must come first", place)
            else:
                axes.append(Variadic(Label("*")))
        elif token == "1":
            cursor.at += 1
            axes.append(Unit())
        elif token == "(":
            cursor.at += 1
            group: list[Label] = []
            while _IDENTIFIER.match(cursor.peek()):
                part = label(True)
                assert isinstance(part, Label)
                group.append(part)
            if not cursor.accept(")"):
                if cursor.peek() in ("", ",", "->", "("):
                    raise Mistake("the parenthesis opened here is never closed", place)
                _unexpected(cursor, "a label or )")
            if not group:
                raise Mistake("an axis ( ) needs labels in it", place)
            axes.append(Axis(tuple(group)))
        elif _IDENTIFIER.match(token):
            part = label(False)
            axes.append(Axis((part,)) if isinstance(part, Label) else part)
        elif token.isdigit():
            raise Mistake(f"an axis is a label, 1 or *, not {token}: sizes do not decide a layout", place)
        else:
            break
    if not axes:
        if cursor.peek() in ("", ",", "->"):
            raise Mistake("a tensor without axes is written (), and here is nothing", cursor.place())
        _unexpected(cursor, "an axis")
    return Pattern(tuple(axes)), new, words
