"""The rule notation: what each form means, each mistake's message, and the round trip through text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.rules.notation import (
    Any,
    Axis,
    Label,
    OperandPattern,
    OutputPattern,
    Param,
    Pattern,
    Rule,
    Unit,
    Variadic,
    format_rules,
    parse,
)


def one(text: str) -> Rule:
    (rule,) = parse(text, "f.rules")
    return rule


def test_a_factor_rule_has_named_operands_axes_and_outputs() -> None:
    rule = one(
        "m.op(x, w, ids=None, heads=8)\n"
        "    x: t.. h!, w[]: (h d=heads) * 1, ids?: () -> t.. n=heads, -, (), =x\n"
    )
    assert rule.kind == "factors"
    assert rule.params == (
        Param("x"),
        Param("w"),
        Param("ids", None, required=False),
        Param("heads", 8, required=False),
    )
    h = Label("h", whole=True)
    assert rule.operands == (
        OperandPattern("x", False, False, Pattern((Variadic(Label("t")), Axis((h,))))),
        OperandPattern(
            "w", False, True, Pattern((Axis((Label("h"), Label("d"))), Any(), Unit())), {"d": "heads"}
        ),
        OperandPattern("ids", True, False, Pattern(())),
    )
    assert rule.outputs == (
        OutputPattern("tensor", Pattern((Variadic(Label("t")), Axis((Label("n"),)))), None, {"n": "heads"}),
        OutputPattern("none"),
        OutputPattern("tensor", Pattern(())),
        OutputPattern("same", None, "x"),
    )
    assert rule.source == "f.rules:1"


def test_operands_without_names_are_the_parameters_in_order() -> None:
    rule = one("m.mm(a, b)\n    t k, k n -> t n\n")
    assert [operand.param for operand in rule.operands] == ["a", "b"]


def test_a_rule_without_operands_makes_a_tensor() -> None:
    rule = one("m.eye(n)\n    -> r=n c=n\n")
    assert rule.operands == ()
    assert rule.outputs[0].new == {"r": "n", "c": "n"}


def test_further_lines_are_kept() -> None:
    rule = one(
        "m.op(x, w, b, s, ids, dt, group)\n"
        "    x: t k, w: k n, ids: t -> t n, t n\n"
        "    then all_reduce ranks=group\n"
        "    linear x w\n"
        "    addend b\n"
        "    weight w\n"
        "    weight b\n"
        "    whole ids\n"
        "    scale s of x\n"
        "    mutates b\n"
        "    outdtype dt -\n"
        "    into ids n\n"
        "    into out1 k\n"
        "    part norm x\n"
        "    doc one line\n"
        "    doc and another -> more\n"
    )
    assert rule.then == (("all_reduce", {"ranks": "group"}),)
    assert rule.linear == {"x", "w"}
    assert rule.addends == {"b"}
    assert rule.weights == {"w", "b"}
    assert rule.whole == {"ids"}
    assert rule.scales == {"s": "x"}
    assert rule.mutates == ("b",)
    assert rule.outdtypes == ("dt", None)
    assert rule.outdtype == "dt"
    assert rule.into == {"ids": "n", "out1": "k"}
    assert rule.part == ("norm", "x")
    assert rule.doc == "one line and another -> more"


def test_headers_share_a_body_and_lines_go_on_after_a_comma_or_an_arrow() -> None:
    first, second = parse(
        "# a comment\n"
        "m.a(x,\n"
        "        y, *, mode='a,b)')\n"
        "m.b(y, x)  # another\n"
        "    x: t k,\n"
        "\n"
        "        y: k n ->\n"
        "        t n\n"
    )
    assert first.params == (Param("x"), Param("y"), Param("mode", "a,b)", required=False))
    assert second.target == "m.b"
    assert first.operands == second.operands
    assert len(first.outputs) == 1


def test_code_has_a_name_and_options() -> None:
    rule = one("m.reshape(x, shape)\n    code view self=x size=shape\n")
    assert (rule.kind, rule.code, rule.options) == ("code", "view", {"self": "x", "size": "shape"})


MISTAKES = {
    "unknown keyword": (
        "m.op(x)\n    elemwise\n",
        "f:2:5",
        "unknown keyword 'elemwise': a line has -> in it or begins with elementwise, code, then, linear, "
        "additive, addend, weight, whole, mutates, scale, outdtype, widens, into, causal, part, doc",
    ),
    "new label without a size": (
        "m.op(x)\n    x: t k -> t n\n",
        "f:2:17",
        "the label n is on no operand; write n=param if it is new",
    ),
    "variadic not leading": (
        "m.op(x)\n    x: k t.. -> k\n",
        "f:2:10",
        "t.. stands for leading axes and must come first",
    ),
    "nameless variadic not leading": (
        "m.op(x)\n    x: k *.. -> k\n",
        "f:2:10",
        "*.. stands for leading axes and must come first",
    ),
    "variadic in a group": (
        "m.op(x)\n    x: (t.. k) -> k\n",
        "f:2:9",
        "t.. stands for leading axes and must come first",
    ),
    "duplicate header": (
        "m.op(x)\n    elementwise\n\nm.op(y)\n    elementwise\n",
        "f:4:1",
        "m.op has a rule already, in line 1",
    ),
    "linear names no parameter": (
        "m.op(x)\n    elementwise\n    linear x y\n",
        "f:3:14",
        "`linear` names y, which is no parameter of m.op (it has x)",
    ),
    "weight names no parameter": (
        "m.op()\n    -> ()\n    weight w\n",
        "f:3:12",
        "`weight` names w, which is no parameter of m.op (it has none)",
    ),
    "linear and additive": (
        "m.op(x)\n    elementwise\n    linear x\n    additive x\n",
        "f:4:14",
        "x is linear and additive at once; one of them is meant",
    ),
    "a name twice": (
        "m.op(x)\n    elementwise\n    linear x\n    linear x\n",
        "f:4:12",
        "`linear` names x twice",
    ),
    "an empty name line": (
        "m.op(x)\n    elementwise\n    linear\n",
        "f:3:5",
        "`linear` needs at least one name",
    ),
    "unbalanced parenthesis": (
        "m.op(x)\n    x: (h d -> h d\n",
        "f:2:8",
        "the parenthesis opened here is never closed",
    ),
    "parenthesis at the end": (
        "m.op(x)\n    x: t -> (t\n",
        "f:2:13",
        "the parenthesis opened here is never closed",
    ),
    "closing parenthesis alone": ("m.op(x)\n    x: h) -> h\n", "f:2:9", "this parenthesis closes nothing"),
    "nested parenthesis": (
        "m.op(x)\n    x: (a (b)) -> a\n",
        "f:2:8",
        "the parenthesis opened here is never closed",
    ),
    "mark in a group": (
        "m.op(x)\n    x: (a *) -> a\n",
        "f:2:11",
        "'*' stands where a label or ) should follow",
    ),
    "header never closed": (
        "m.op(x\n    elementwise\n",
        "f:1:5",
        "the parenthesis opened here is never closed",
    ),
    "header closed too early": (
        "m.op(x) y\n    elementwise\n",
        "f:1:7",
        "after the closing parenthesis of a header stands 'y'",
    ),
    "header without parameters": (
        "m.op\n    elementwise\n",
        "f:1:5",
        "m.op needs its parameters in parentheses after it",
    ),
    "header without a namespace": (
        "op(x)\n    elementwise\n",
        "f:1:1",
        "a header reads namespace.op(parameters) or namespace.op.overload(parameters)",
    ),
    "a comma too many": (
        "m.op(x,,y)\n    elementwise\n",
        "f:1:8",
        "here is a comma without a parameter before it",
    ),
    "not a parameter": (
        "m.op(x, 3)\n    elementwise\n",
        "f:1:9",
        "'3' is no parameter: write name or name=default",
    ),
    "not a literal": (
        "m.op(x, y=open('f'))\n    elementwise\n",
        "f:1:9",
        "the default \"open('f')\" is no Python literal",
    ),
    "parameter twice": ("m.op(x, x)\n    elementwise\n", "f:1:9", "the parameter x stands twice"),
    "parameter after the rest": (
        "m.op(*xs, y)\n    elementwise\n",
        "f:1:11",
        "*xs takes all further arguments, so nothing can follow it",
    ),
    "no body": ("m.op(x)\n", "f:1:1", "m.op has no rule under its header"),
    "no rule": (
        "m.op(x)\n    linear x\n",
        "f:2:5",
        "the stanza of m.op has no rule: a line with ->, `elementwise` or `code NAME`",
    ),
    "two rules": (
        "m.op(x)\n    elementwise\n    code view\n",
        "f:3:5",
        "a stanza has one rule, and line 2 holds one already",
    ),
    "no header": ("    elementwise\n", "f:1:5", "an indented line needs a header above it, in column 1"),
    "words after elementwise": (
        "m.op(x)\n    elementwise x\n",
        "f:2:17",
        "`elementwise` stands alone on its line",
    ),
    "code without a name": ("m.op(x)\n    code\n", "f:2:5", "`code` needs the name of a transform"),
    "option without a value": (
        "m.op(x)\n    code view size\n",
        "f:2:15",
        "an option of `code` reads key=value, not 'size'",
    ),
    "option twice": ("m.op(x)\n    code view a=x a=x\n", "f:2:19", "the option a is given twice"),
    "scale without of": (
        "m.op(x, s)\n    elementwise\n    scale s x\n",
        "f:3:5",
        "a scale line reads `scale SCALE of VALUE`",
    ),
    "an unknown part": (
        "m.op(x)\n    x: t -> t\n    part head\n",
        "f:3:5",
        "a part line reads `part WORD`, and WORD is one of norm, attention, indexer",
    ),
    "a part twice": (
        "m.op(x)\n    x: t -> t\n    part norm\n    part norm\n",
        "f:4:5",
        "`part` stands twice in this stanza",
    ),
    "a part with names": (
        "m.op(x)\n    x: t -> t\n    part indexer x\n",
        "f:3:18",
        "`part indexer` takes no names",
    ),
    "a part of no parameter": (
        "m.op(x)\n    x: t -> t\n    part norm y\n",
        "f:3:15",
        "`part` names y, which is no parameter of m.op (it has x)",
    ),
    "into without a label": (
        "m.op(x)\n    x: t -> t\n    into x\n",
        "f:3:5",
        "an into line reads `into INDEX LABEL`",
    ),
    "into an unknown label": (
        "m.op(x)\n    x: t -> t\n    into x k\n",
        "f:3:12",
        "`into` names the label k, which this rule does not have",
    ),
    "outdtype of nothing": (
        "m.op(x)\n    elementwise\n    outdtype floaty\n",
        "f:3:14",
        "`outdtype` names floaty, which is neither a parameter nor a dtype",
    ),
    "outdtype twice": (
        "m.op(x)\n    elementwise\n    outdtype bool\n    outdtype bool\n",
        "f:4:5",
        "`outdtype` stands twice in this stanza",
    ),
    "operand is no parameter": (
        "m.op(x)\n    x: t, y: t -> t\n",
        "f:2:11",
        "an operand names y, which is no parameter of m.op (it has x)",
    ),
    "operand twice": ("m.op(x)\n    x: t, x: t -> t\n", "f:2:11", "the operand x stands twice"),
    "too many operands": (
        "m.op(x)\n    t, t -> t\n",
        "f:2:8",
        "m.op has 1 parameters, and here is operand 2",
    ),
    "some operands without names": (
        "m.op(x, y)\n    x: t, t -> t\n",
        "f:2:11",
        "either every operand has its name or none has",
    ),
    "marks without a name": (
        "m.op(x)\n    x? t -> t\n",
        "f:2:5",
        "[] and ? belong to an operand with a name, as in `name[]?: axes`",
    ),
    "same as nothing": (
        "m.op(x)\n    x: t -> =y\n",
        "f:2:14",
        "an output names y, which is no parameter of m.op (it has x)",
    ),
    "same without a name": (
        "m.op(x)\n    x: t -> =\n",
        "f:2:14",
        "= needs the name of an operand, as in `=residual`",
    ),
    "size is no parameter": (
        "m.op(x)\n    x: t -> t h=heads\n",
        "f:2:17",
        "a size names heads, which is no parameter of m.op (it has x)",
    ),
    "size of an operand is no parameter": (
        "m.op(x)\n    x: (t h=heads) -> t\n",
        "f:2:13",
        "a size names heads, which is no parameter of m.op (it has x)",
    ),
    "size of a known label": (
        "m.op(x, n)\n    x: t -> t=n\n",
        "f:2:13",
        "t is on an operand already; its size belongs there",
    ),
    "size without a parameter": (
        "m.op(x)\n    x: t -> h=3\n",
        "f:2:15",
        "h= needs the name of a parameter that holds its extent",
    ),
    "mark on an output": (
        "m.op(x)\n    x: t -> t!\n",
        "f:2:13",
        "the mark ! of t belongs to an operand, not to an output",
    ),
    "label twice on a tensor": (
        "m.op(x)\n    x: t t -> t\n",
        "f:2:10",
        "the label t stands twice on one tensor; two instances need two labels",
    ),
    "one axis and many": (
        "m.op(x, y)\n    x: t.., y: t -> t..\n",
        "f:2:16",
        "the label t stands for one axis here and for any number (..) there",
    ),
    "nothing for a tensor": (
        "m.op(x)\n    x: -> t\n",
        "f:2:8",
        "a tensor without axes is written (), and here is nothing",
    ),
    "nothing after the arrow": (
        "m.op(x)\n    x: t ->\n",
        "f:2:12",
        "a tensor without axes is written (), and here is nothing",
    ),
    "a number for an axis": (
        "m.op(x)\n    x: t 128 -> t\n",
        "f:2:10",
        "an axis is a label, 1 or *, not 128: sizes do not decide a layout",
    ),
    "two arrows": ("m.op(x)\n    x: t -> t -> t\n", "f:2:15", "a rule has one ->"),
    "no arrow": (
        "m.op(x)\n    x: t,\n    x: t\n",
        "f:3:9",
        "the rule ends where a comma or -> should follow",
    ),
    "an empty axis": (
        "m.op(x)\n    x: t ( ! ) -> t\n",
        "f:2:12",
        "'!' stands where a label or ) should follow",
    ),
    "a sign without meaning": ("m.op(x)\n    x: t & k -> t\n", "f:2:10", "'&' has no meaning in a rule"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_sentence_with_its_place(name: str) -> None:
    text, where, message = MISTAKES[name]
    with pytest.raises(InputError) as caught:
        parse(text, "f")
    assert (caught.value.where, caught.value.message) == (where, message)


def test_bind_fills_defaults_and_takes_names() -> None:
    rule = one("m.op(x, dim=0, *, dtype=None)\n    elementwise\n")
    assert rule.bind(("a",), {"dtype": "d"}) == {"x": "a", "dim": 0, "dtype": "d"}
    assert list(rule.bind((), {"dim": 1, "x": "a"})) == ["x", "dim", "dtype"]


def test_bind_collects_the_rest() -> None:
    rule = one("m.sum(first, *others)\n    code sym op=sum\n")
    assert rule.bind((1, 2, 3), {}) == {"first": 1, "others": (2, 3)}
    assert rule.bind((1,), {}) == {"first": 1, "others": ()}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, 2, 3), {}, "m.op takes 2 arguments (x, dim), and 3 are given"),
        ((1,), {"x": 1}, "m.op is given its argument x twice"),
        ((), {"dim": 1}, "m.op needs its argument x"),
        ((1,), {"axis": 1}, "m.op has no argument axis (it has x, dim)"),
    ],
)
def test_bind_refuses_arguments_that_do_not_fit(
    args: tuple[int, ...], kwargs: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        one("m.op(x, dim=0)\n    elementwise\n").bind(args, kwargs)
    assert caught.value.message == message


NAMES = st.sampled_from(["x", "y", "w", "ids", "dim"])
LABELS = st.sampled_from(["t", "k", "n", "h", "d"])
DEFAULTS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.lists(st.integers()))


@st.composite
def rules(draw: st.DrawFn, target: str) -> Rule:
    """Any rule that the notation can hold."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    params = [
        Param(name, draw(DEFAULTS), required=False) if draw(st.booleans()) else Param(name) for name in names
    ]
    params = [attrs_required(param) for param in params]
    kind = draw(st.sampled_from(["factors", "elementwise", "code"]))
    some = st.lists(st.sampled_from(names), max_size=3, unique=True)
    roles = {name: draw(st.sampled_from(["linear", "additive", "addends", ""])) for name in names}
    common = {
        key: frozenset(name for name in names if roles[name] == key)
        for key in ("linear", "additive", "addends")
    }
    operands: list[OperandPattern] = []
    outputs: list[OutputPattern] = []
    labels: list[str] = []
    if kind == "factors":
        variadic = {label: draw(st.booleans()) for label in ["t", "k", "n", "h", "d"]}
        for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
            pattern, sizes = draw(patterns(variadic, names, operand=True))
            operands.append(OperandPattern(name, draw(st.booleans()), draw(st.booleans()), pattern, sizes))
        labels = [label.name for operand in operands for label in operand.pattern.labels()]
        for _ in range(draw(st.integers(1, 3))):
            shape = draw(st.sampled_from(["tensor", "none", "same"]))
            if shape == "same":
                outputs.append(OutputPattern("same", None, draw(st.sampled_from(names))))
            elif shape == "none":
                outputs.append(OutputPattern("none"))
            else:
                pattern, new = draw(patterns(variadic, names, operand=False, known=labels))
                outputs.append(OutputPattern("tensor", pattern, None, new))
        labels = [label for label in labels if label != "*"] + [n for out in outputs for n in out.new]
    pairs = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([*names, "0", "sum"]), max_size=2)
    return Rule(
        target=target,
        params=tuple(params),
        kind=kind,  # type: ignore[arg-type]
        operands=tuple(operands),
        outputs=tuple(outputs),
        code="view" if kind == "code" else None,
        options=draw(pairs) if kind == "code" else {},
        weights=frozenset(draw(some)),
        whole=frozenset(draw(some)),
        scales=draw(st.dictionaries(st.sampled_from(names), st.sampled_from(names), max_size=2)),
        mutates=tuple(draw(some)),
        outdtypes=tuple(draw(st.lists(st.sampled_from([None, "bool", *names]), max_size=2))),
        then=tuple(("quantize", options) for options in draw(st.lists(pairs, max_size=2))),
        into=draw(st.dictionaries(st.sampled_from([*names, "out0"]), st.sampled_from(labels), max_size=2))
        if labels
        else {},
        doc=draw(st.sampled_from(["", "some words", "an -> arrow"])),
        **common,
    )


def attrs_required(param: Param) -> Param:
    """The parameter with the default that parsing gives to a required one."""
    return Param(param.name) if param.required else param


@st.composite
def patterns(
    draw: st.DrawFn,
    variadic: dict[str, bool],
    names: list[str],
    operand: bool,
    known: list[str] | None = None,
) -> tuple[Pattern, dict[str, str]]:
    """A pattern and the sizes in it."""
    axes: list[Variadic | Axis | Unit | Any] = []
    sizes: dict[str, str] = {}
    used: set[str] = set()
    many = [label for label, is_many in variadic.items() if is_many]
    many = many if operand else [label for label in many if label in (known or [])]
    lead = draw(st.sampled_from(["", "*", *many]))
    if lead:
        used.add(lead)
        whole = operand and lead != "*" and draw(st.booleans())
        axes.append(Variadic(Label(lead, whole)))
    single = [label for label, is_many in variadic.items() if not is_many]
    for _ in range(draw(st.integers(0, 3))):
        free = [label for label in single if label not in used]
        kind = draw(st.sampled_from(["axis", "group", "unit", "any"] if free else ["unit", "any"]))
        if kind in ("axis", "group"):
            count = 1 if kind == "axis" else draw(st.integers(1, len(free)))
            group = []
            for name in free[:count]:
                used.add(name)
                group.append(Label(name, operand and draw(st.booleans())))
                if (operand and draw(st.booleans())) or (not operand and name not in (known or [])):
                    sizes[name] = draw(st.sampled_from(names))
            axes.append(Axis(tuple(group)))
        else:
            axes.append(Unit() if kind == "unit" else Any())
    return Pattern(tuple(axes)), sizes


@given(rules("m.op.a"), rules("m.op.b"))
def test_text_and_rules_round_trip(first: Rule, second: Rule) -> None:
    text = format_rules([first, second])
    again = parse(text)
    assert again == (first, second)
    assert format_rules(again) == text


@given(st.text(alphabet="mop.(x)\n    :->t k!=,*[]?12#codelinr", max_size=80))
def test_any_text_parses_or_is_refused_with_a_place(text: str) -> None:
    try:
        found = parse("m.op(x, k)\n    " + text, "f")
    except InputError as error:
        assert error.where is not None and error.where.startswith("f:")
        assert "\n" not in error.message
    else:
        assert parse(format_rules(found)) == found


def test_a_stanza_pasted_as_a_report_shows_it_is_read() -> None:
    """Reports print a stanza behind some blanks."""
    plain = "ns.op(x, w)\n    x: t.. k, w: k n -> t.. n\n    weight w\n"
    pasted = "\n".join("         " + line for line in plain.splitlines())
    assert parse(pasted) == parse(plain)


def test_a_widens_line_is_kept() -> None:
    (found,) = parse("m.sum(x)\n    code reduce kind=sum\n    widens integers int64\n")
    assert found.widens == ("integers", "int64")
    assert parse(format_rules([found])) == (found,)


@pytest.mark.parametrize("line", ["widens", "widens integers", "widens floats float32", "widens bools int65"])
def test_a_malformed_widens_line_is_told(line: str) -> None:
    with pytest.raises(InputError, match="a widens line reads `widens WHAT DTYPE`, and WHAT is one of"):
        parse(f"m.op(x)\n    elementwise\n    {line}\n")


def test_a_second_widens_line_is_told() -> None:
    with pytest.raises(InputError, match="`widens` stands twice in this stanza"):
        parse("m.op(x)\n    elementwise\n    widens bools int64\n    widens bools int32\n")
