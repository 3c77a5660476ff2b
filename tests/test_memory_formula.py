"""Formulas: what a line prints is what is counted, and sympy reads it the same way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.cache import Cache, add_cache
from layoutcheck.memory.formula import evaluate, product, substitute, tidy, to_sympy
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import ByName
from layoutcheck.models import load_model, shipped_models

NAMES = ("a", "b", "c")


@st.composite
def formulas(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(st.one_of(st.sampled_from(NAMES), st.integers(1, 9).map(str)))
    left, right = draw(formulas(depth=depth - 1)), draw(formulas(depth=depth - 1))
    return draw(
        st.sampled_from(
            [
                f"({left}) + ({right})",
                f"({left})*({right})",
                f"ceil({left}, {right})",
                f"pad({left}, {right})",
                f"max({left}, {right})",
                f"1 + ({left})//({right})" if right.isdigit() else f"({left})*({right})",
            ]
        )
    )


@given(formulas(), st.fixed_dictionaries({name: st.integers(1, 50) for name in NAMES}))
def test_sympy_and_the_tidy_text_agree_with_the_value(text: str, symbols: dict[str, int]) -> None:
    value = evaluate(text, symbols)
    assert evaluate(tidy(text), symbols) == value
    expression = to_sympy(text)
    assert expression.subs({s: symbols[s.name] for s in expression.free_symbols}) == value


@given(st.lists(formulas(depth=2), min_size=1, max_size=4), st.integers(1, 9))
def test_a_product_of_formulas_is_the_product_of_their_values(texts: list[str], n: int) -> None:
    symbols = dict.fromkeys(NAMES, n)
    expected = 1
    for text in texts:
        expected *= evaluate(text, symbols)
    assert evaluate(product(*texts), symbols) == expected


def test_a_share_is_exact() -> None:
    assert evaluate("12/4*5", {}) == 15
    with pytest.raises(InputError, match="7 does not divide into 2"):
        evaluate("n/2", {"n": 7})
    # a share stays a share inside a product: 2*(7/2) is not 14/2
    with pytest.raises(InputError):
        evaluate(tidy(product("2", "n/2")), {"n": 7})
    assert evaluate(substitute("out*in", {"out": "a+b", "in": "c/2"}), {"a": 1, "b": 2, "c": 8}) == 12


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.b",
        "a**b",
        "lambda: 1",
        "[1]",
        "a if b else c",
        "1.5",
        "'x'",
        "True",
        "min(*a)",
        "ceil(a)",
        "evaluate(a, b)",
        "_exact(1, 1)",
        "a; b",
        "",
        "(" * 3000 + "a" + ")" * 3000,
        "-" * 500 + "a",
        "1" * 5000,
        "a" + "+a" * 1500,
    ],
)
def test_nothing_but_formulas(text: str) -> None:
    with pytest.raises(InputError):
        evaluate(text, {"a": 1, "b": 2, "c": 3})


@pytest.mark.parametrize("text", ["a//0", "1/0", "ceil(1, 0)", "missing + 1"])
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(InputError):
        evaluate(text, {"a": 1})


def _ledgers() -> list[Ledger]:
    found = []
    for name in shipped_models():
        config = load_model(name)
        tp = 4
        modes = ("dsa-cp",) if config.indexer else ()
        distribute = ("q_b_proj",) if config.indexer else ()
        ep = 8 if config.experts else 1
        plan = Plan(Parallel(tp, 2, ep), modes=modes, distribute=distribute, rank=3)
        for scheme in ("W8A8", "W8A8_DYNAMIC", "W4A8_DYNAMIC", "W8A16", "FLOAT"):
            ledger = weight_ledger(config, plan, ByName(scheme))
            add_cache(ledger, config, plan, Cache(1000, 3, index_dtype="int8"))
            found.append(ledger)
    return found


def test_every_line_of_every_shipped_model_has_a_formula_that_gives_its_bytes() -> None:
    for ledger in _ledgers():
        symbols = ledger.symbols
        for line in ledger.lines:
            assert evaluate(line.formula, symbols) == line.bytes > 0
            assert line.tensors or line.category == "buffers"
        assert sum(ledger.by_category().values()) == ledger.total()
        # a line of its own for everything: no two say the same
        names = [(line.name, line.scheme, line.state, line.formula) for line in ledger.lines]
        assert len(set(names)) == len(names)


def test_the_formula_of_a_line_as_sympy() -> None:
    for ledger in _ledgers()[:5]:
        for line in ledger.lines:
            expression = to_sympy(line.formula)
            values = {symbol: ledger.symbols[symbol.name] for symbol in expression.free_symbols}
            assert int(expression.subs(values)) == line.bytes
