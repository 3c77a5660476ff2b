"""The parser of the rule notation: text to `Rule`s, one clear sentence per mistake.

A stanza is read in two steps. Its body is parsed once, into a form that knows no parameter names yet; then it
is resolved against each of the stanza's headers, since several ops may share a body.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import attrs

from layoutcheck.errors import InputError
from layoutcheck.rules.headers import Header, parse_header
from layoutcheck.rules.patterns import FactorRule, Segment, Token, parse_factor_rule
from layoutcheck.rules.places import Mistake, Place
from layoutcheck.rules.types import OperandPattern, OutputPattern, Param, Rule

__all__ = ["DTYPES", "KEYWORDS", "PARTS", "parse"]

_NAME_LINES = ("linear", "additive", "addend", "weight", "whole", "mutates")
KEYWORDS = (
    *(
        "elementwise",
        "code",
        "then",
        *_NAME_LINES,
        "scale",
        "outdtype",
        "widens",
        "into",
        "causal",
        "part",
        "doc",
    ),
)
WIDENED = ("integers", "bools")
PARTS = ("norm", "attention", "indexer")
DTYPES = frozenset(
    {
        *("bool", "uint8", "uint16", "uint32", "uint64", "int4", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        "float4_e2m1fn_x2",
    }
)
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_WORD = re.compile(r"\S+")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_OUTPUT = re.compile(r"out\d+\Z")
_CODE = tuple[str, dict[str, str]]


@attrs.define
class _Body:
    """A stanza's body before its names are resolved; words keep their places for the messages."""

    main: str = ""
    main_place: Place = (0, 0)
    factors: FactorRule | None = None
    code: str | None = None
    options: dict[str, str] = attrs.Factory(dict)
    then: list[_CODE] = attrs.Factory(list)
    names: dict[str, list[Token]] = attrs.Factory(dict)
    scales: list[tuple[Token, Token]] = attrs.Factory(list)
    into: list[tuple[Token, Token]] = attrs.Factory(list)
    causal: list[tuple[Token, Token]] = attrs.Factory(list)
    outdtypes: list[Token] = attrs.Factory(list)
    widens: tuple[str, str] | None = None
    part: list[Token] = attrs.Factory(list)
    doc: list[str] = attrs.Factory(list)


_PASTED = re.compile(r"\s+[\w.]+\([^()]*\)\s*(#.*)?$")


def parse(text: str, where: str = "<rules>") -> tuple[Rule, ...]:
    """The rules of a rule file's text, in order.

    `where` names the file in messages and in each rule's `source`. Raises InputError, whose `where` is
    `file:line:column`, for the first mistake.
    """
    first = next(
        (line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), ""
    )
    if _PASTED.match(first):
        # pasted from a report, where it stands indented
        text = textwrap.dedent(text)
    try:
        return tuple(_stanzas(text, where))
    except Mistake as mistake:
        line, column = mistake.place
        raise InputError(mistake.message, where=f"{where}:{line}:{column}") from None


def _stanzas(text: str, where: str) -> Iterator[Rule]:
    headers: list[Header] = []
    body: list[list[Segment]] = []
    seen: dict[str, int] = {}
    for segments in _logical_lines(text):
        line, column, _ = segments[0]
        if column == 1:
            if body:
                yield from _resolve(headers, body, where)
                headers, body = [], []
            header = parse_header(segments)
            if header.target in seen:
                raise Mistake(
                    f"{header.target} has a rule already, in line {seen[header.target]}", header.place
                )
            seen[header.target] = line
            headers.append(header)
        elif not headers:
            raise Mistake("an indented line needs a header above it, in column 1", (line, column))
        else:
            body.append(segments)
    if headers:
        yield from _resolve(headers, body, where)


def _logical_lines(text: str) -> Iterator[list[Segment]]:
    """Lines without comments and blanks; one that ends in `,`, `->` or `(` goes on in the next one."""
    pending: list[Segment] = []
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw if "#" not in raw else _COMMENT.sub("", raw)
        stripped = content.strip()
        if not stripped:
            continue
        column = len(content) - len(content.lstrip()) + 1
        if column == 1 and pending and not stripped.startswith(")"):
            yield pending
            pending = []
        pending.append((number, column, stripped))
        first = pending[0]
        is_doc = first[1] > 1 and first[2].startswith("doc ")
        if is_doc or not (stripped[-1] in ",(" or stripped.endswith("->")):
            yield pending
            pending = []
    if pending:
        yield pending


def _resolve(headers: Sequence[Header], lines: Sequence[Sequence[Segment]], where: str) -> Iterator[Rule]:
    if not lines:
        header = headers[-1]
        raise Mistake(f"{header.target} has no rule under its header", header.place)
    body = _parse_body(lines)
    if not body.main:
        raise Mistake(
            f"the stanza of {headers[-1].target} has no rule: a line with ->, `elementwise` or `code NAME`",
            lines[0][0][:2],
        )
    for header in headers:
        yield _rule(header, body, where)


def _parse_body(lines: Sequence[Sequence[Segment]]) -> _Body:
    body = _Body()
    for segments in lines:
        number, column, content = segments[0]
        words = [(m.group(), number, column + m.start()) for m in _WORD.finditer(content)]
        keyword = words[0][0]
        place = (number, column)
        if keyword == "doc":
            body.doc.append(content[3:].strip())
        elif len(segments) > 1 or any("->" in part[2] for part in segments):
            _set_main(body, "factors", place)
            body.factors = parse_factor_rule(segments)
        elif keyword == "elementwise":
            _set_main(body, "elementwise", place)
            body.options = _multipliers(words)
        elif keyword == "code":
            _set_main(body, "code", place)
            body.code, body.options = _code(words)
        elif keyword == "then":
            body.then.append(_code(words))
        elif keyword in _NAME_LINES or keyword == "outdtype":
            _name_line(body, words)
        elif keyword == "scale":
            if len(words) != 4 or words[2][0] != "of":
                raise Mistake("a scale line reads `scale SCALE of VALUE`", place)
            body.scales.append((words[1], words[3]))
        elif keyword == "into":
            if len(words) != 3:
                raise Mistake("an into line reads `into INDEX LABEL`", place)
            body.into.append((words[1], words[2]))
        elif keyword == "causal":
            if len(words) != 3:
                raise Mistake("a causal line reads `causal ARGUMENT LABEL`", place)
            body.causal.append((words[1], words[2]))
        elif keyword == "widens":
            body.widens = _widens(body, words)
        elif keyword == "part":
            _part_line(body, words)
        else:
            known = ", ".join(KEYWORDS)
            raise Mistake(f"unknown keyword {keyword!r}: a line has -> in it or begins with {known}", place)
    return body


def _set_main(body: _Body, kind: str, place: Place) -> None:
    if body.main:
        raise Mistake(f"a stanza has one rule, and line {body.main_place[0]} holds one already", place)
    body.main, body.main_place = kind, place


def _code(words: Sequence[Token]) -> _CODE:
    keyword, number, column = words[0]
    if len(words) < 2 or not _NAME.match(words[1][0]):
        raise Mistake(f"`{keyword}` needs the name of a transform", (number, column))
    options: dict[str, str] = {}
    for word, line, at in words[2:]:
        key, equals, value = word.partition("=")
        if not (equals and value and _NAME.match(key)):
            raise Mistake(f"an option of `{keyword}` reads key=value, not {word!r}", (line, at))
        if key in options:
            raise Mistake(f"the option {key} is given twice", (line, at))
        options[key] = value
    return words[1][0], options


def _multipliers(words: Sequence[Token]) -> dict[str, str]:
    """The options of an elementwise line: the parameters by which, as numbers, the result is multiplied or divided."""
    options: dict[str, str] = {}
    for word, line, at in words[1:]:
        key, _, value = word.partition("=")
        if key not in ("factor", "divisor") or not _NAME.match(value) or key in options:
            raise Mistake("`elementwise` stands alone on its line", (line, at))
        options[key] = value
    return options


def _name_line(body: _Body, words: Sequence[Token]) -> None:
    keyword, number, column = words[0]
    if len(words) < 2:
        raise Mistake(f"`{keyword}` needs at least one name", (number, column))
    if keyword == "outdtype":
        if body.outdtypes:
            raise Mistake("`outdtype` stands twice in this stanza", (number, column))
        body.outdtypes.extend(words[1:])
    else:
        known = body.names.setdefault(keyword, [])
        for word in words[1:]:
            if any(word[0] == other for other, _, _ in known):
                raise Mistake(f"`{keyword}` names {word[0]} twice", word[1:])
            known.append(word)


def _widens(body: _Body, words: Sequence[Token]) -> tuple[str, str]:
    _, number, column = words[0]
    if body.widens is not None:
        raise Mistake("`widens` stands twice in this stanza", (number, column))
    if len(words) != 3 or words[1][0] not in WIDENED or words[2][0] not in DTYPES:
        raise Mistake(
            f"a widens line reads `widens WHAT DTYPE`, and WHAT is one of {', '.join(WIDENED)}",
            (number, column),
        )
    return words[1][0], words[2][0]


def _part_line(body: _Body, words: Sequence[Token]) -> None:
    _, number, column = words[0]
    if body.part:
        raise Mistake("`part` stands twice in this stanza", (number, column))
    if len(words) < 2 or words[1][0] not in PARTS:
        raise Mistake(
            f"a part line reads `part WORD`, and WORD is one of {', '.join(PARTS)}", (number, column)
        )
    if len(words) > 2 and words[1][0] != "norm":
        raise Mistake(f"`part {words[1][0]}` takes no names", words[2][1:])
    body.part.extend(words[1:])


def _rule(header: Header, body: _Body, where: str) -> Rule:
    names = {param.name for param in header.params}

    def check(word: Token, what: str) -> str:
        if word[0] not in names:
            _no_param(what, word, header)
        return word[0]

    sets = {key: [check(w, f"`{key}`") for w in words] for key, words in body.names.items()}
    said: dict[str, str] = {}
    for key in ("linear", "additive", "addend"):
        for word in body.names.get(key, ()):
            if word[0] in said:
                raise Mistake(
                    f"{word[0]} is {said[word[0]]} and {key} at once; one of them is meant", word[1:]
                )
            said[word[0]] = key
    operands, outputs = _factors(header, body.factors) if body.factors else ((), ())
    labels = body.factors.labels if body.factors else frozenset()
    outdtypes: list[str | None] = []
    for word in body.outdtypes:
        if word[0] not in names and word[0] not in DTYPES and word[0] != "-":
            raise Mistake(f"`outdtype` names {word[0]}, which is neither a parameter nor a dtype", word[1:])
        outdtypes.append(None if word[0] == "-" else word[0])
    into: dict[str, str] = {}
    for index, label in body.into:
        if not _OUTPUT.match(index[0]):
            check(index, "`into`")
        if label[0] not in labels:
            raise Mistake(f"`into` names the label {label[0]}, which this rule does not have", label[1:])
        into[index[0]] = label[0]
    causal: dict[str, str] = {}
    for argument, label in body.causal:
        if label[0] not in labels:
            raise Mistake(f"`causal` names the label {label[0]}, which this rule does not have", label[1:])
        causal[check(argument, "`causal`")] = label[0]
    return Rule(
        target=header.target,
        params=header.params,
        kind=body.main,  # type: ignore[arg-type]
        operands=operands,
        outputs=outputs,
        code=body.code,
        options=body.options,
        linear=frozenset(sets.get("linear", ())),
        additive=frozenset(sets.get("additive", ())),
        addends=frozenset(sets.get("addend", ())),
        weights=frozenset(sets.get("weight", ())),
        whole=frozenset(sets.get("whole", ())),
        scales={check(s, "`scale`"): check(v, "`scale`") for s, v in body.scales},
        mutates=tuple(sets.get("mutates", ())),
        outdtypes=tuple(outdtypes),
        widens=body.widens,
        then=tuple(body.then),
        part=tuple(w[0] if i == 0 else check(w, "`part`") for i, w in enumerate(body.part)),
        into=into,
        causal=causal,
        doc=" ".join(body.doc),
        source=f"{where}:{header.place[0]}",
    )


def _no_param(what: str, word: Token, header: Header) -> NoReturn:
    have = ", ".join(param.name for param in header.params) or "none"
    raise Mistake(
        f"{what} names {word[0]}, which is no parameter of {header.target} (it has {have})", word[1:]
    )


def _factors(
    header: Header, rule: FactorRule
) -> tuple[tuple[OperandPattern, ...], tuple[OutputPattern, ...]]:
    """The factor rule's operands and outputs with the header's names put in."""
    params: Mapping[str, Param] = {param.name: param for param in header.params}
    order = list(params)
    operands: dict[str, OperandPattern] = {}
    for position, operand in enumerate(rule.operands):
        if operand.name is None:
            if position >= len(order):
                raise Mistake(
                    f"{header.target} has {len(order)} parameters, and here is operand {position + 1}",
                    operand.place,
                )
            name = order[position]
        else:
            name = operand.name
            if name not in params:
                _no_param("an operand", (name, *operand.place), header)
        if name in operands:
            raise Mistake(f"the operand {name} stands twice", operand.place)
        for word in operand.words:
            if word[0] not in params:
                _no_param("a size", word, header)
        operands[name] = OperandPattern(
            name, operand.optional, operand.is_list, operand.pattern, operand.sizes
        )
    for output in rule.outputs:
        what = "an output" if output.pattern.kind == "same" else "a size"
        for word in output.words:
            if word[0] not in params:
                _no_param(what, word, header)
    return tuple(operands.values()), tuple(output.pattern for output in rule.outputs)
