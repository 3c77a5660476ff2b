"""A cache's shard of the heads against the queries' and against what is written: the same ranks hold the same heads."""

from __future__ import annotations

import pytest
from support import engine
from support.builder import GraphBuilder, Json

ROWS = (33, 128)
RANKS = {"tp": [0, 1, 2, 3], "dp": [0, 4, 8, 12]}


def builder() -> GraphBuilder:
    return GraphBuilder({"tp": 4, "dp": 4}, ranks=RANKS)


def joined(b: GraphBuilder, out: object) -> Json:
    """Both groups are in use, so that neither is for different tokens."""
    x = b.input("x", (16, 8), layout="[T, 8] +tp +dp")
    whole = b.all_reduce(b.all_reduce(x), group="dp")
    b.output([out, whole], [None, None])  # type: ignore[list-item]
    return b.graph()


def heads(n: int, over: str) -> tuple[str, int]:
    """The text of an axis of n heads, cut over a group of four or not, and its local size."""
    return (f"{n}/4@{over}", n // 4) if over else (str(n), n)


def reading(query: tuple[int, str], held: tuple[int, str], writing: tuple[int, str] | None = None) -> Json:
    """Attention of queries (heads, group) that reads a cache (heads, group); what is written has heads of its own."""
    b = builder()
    text, n = heads(query[0] * 16, query[1])
    q = b.input("q", (16, n), layout=f"[T, {text}]")
    text, n = heads(*held)
    if writing is None:
        sides = [
            b.input(name, (*ROWS, n, 16), layout=f"[33, 128, {text}, 16]") for name in ("keys", "values")
        ]
    else:
        cache = b.input("cache", (2, *ROWS, n, 16), layout=f"[2, 33, 128, {text}, 16]")
        given, m = heads(*writing)
        new = [b.input(name, (16, m, 16), layout=f"[T, {given}, 16]") for name in ("k", "v")]
        b.call(
            "tensor_cast.reshape_and_cache.default",
            *new,
            cache,
            b.input("slots", (16,), "int64", "[T]"),
            shape=(),
        )
        sides = [b.call("aten.select.int", cache, 0, i, shape=(*ROWS, n, 16)) for i in range(2)]
    rest = (None,) * 5
    return joined(b, b.call("tensor_cast.attention.default", q, *sides, *rest, shape=q.shape))


def found(graph: Json) -> set[tuple[str, str]]:
    return {(engine.code(f), f.node) for f in engine.errors(engine.check(graph))}


RIGHT = [
    ((8, "tp"), (8, "tp")),
    ((32, "tp"), (8, "tp")),  # four queries a head
    ((32, "tp"), (4, "tp")),  # one head a rank
    ((32, "tp"), (1, "")),  # one head for all
    ((32, ""), (8, "")),
    ((32, "dp"), (8, "dp")),
]
WRONG = [
    ((32, ""), (8, "tp")),
    ((32, ""), (4, "tp")),
    ((32, "tp"), (8, "")),
    ((32, "tp"), (8, "dp")),
    ((32, "tp"), (4, "dp")),
    ((32, "dp"), (8, "tp")),
]


@pytest.mark.parametrize(("query", "held"), RIGHT)
def test_the_queries_own_heads_are_read(query: tuple[int, str], held: tuple[int, str]) -> None:
    assert not found(reading(query, held))
    assert not found(reading(query, held, writing=held))


@pytest.mark.parametrize(("query", "held"), WRONG)
def test_other_heads_than_the_queries_are_an_error(query: tuple[int, str], held: tuple[int, str]) -> None:
    assert found(reading(query, held)) == {("LC101", "attention")}
    assert found(reading(query, held, writing=held)) == {("LC101", "attention")}


@pytest.mark.parametrize(
    ("held", "written"), [((8, "tp"), (8, "")), ((8, ""), (8, "tp")), ((8, "tp"), (8, "dp"))]
)
def test_other_heads_than_the_caches_are_not_written(held: tuple[int, str], written: tuple[int, str]) -> None:
    graph = reading((32, held[1]), held, writing=written)
    assert ("LC101", "reshape_and_cache") in found(graph)


@pytest.mark.parametrize("count", [8, 4])
def test_an_undeclared_cache_is_what_is_written_to_it(count: int) -> None:
    graph = reading((32, "tp"), (count, "tp"), writing=(count, "tp"))
    next(n for n in graph["nodes"] if n["name"] == "cache")["meta"].pop("layout")
    report = engine.check(graph)
    assert not report.errors
    assert report.layout_text("cache") == f"bf16[2, 33, 128, {count}/4@tp, 16]"
    wrong = reading((32, ""), (count, "tp"), writing=(count, "tp"))
    next(n for n in wrong["nodes"] if n["name"] == "cache")["meta"].pop("layout")
    assert found(wrong) == {("LC101", "attention")}


def test_a_cache_of_flat_heads_is_compared_too() -> None:
    b = builder()
    cache = b.input("cache", (2, *ROWS, 2, 16), layout="[2, 33, 128, 2, 16]")
    new = [b.input(name, (16, 32), layout="[T, 128/4@tp]") for name in ("k", "v")]
    b.call(
        "tensor_cast.reshape_and_cache.default",
        *new,
        cache,
        b.input("slots", (16,), "int64", "[T]"),
        shape=(),
    )
    graph = joined(b, b.call("aten.select.int", cache, 0, 0, shape=(*ROWS, 2, 16)))
    assert found(graph) == {("LC101", "reshape_and_cache")}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("count", [8, 4])
def test_flat_rows_fill_an_axis_of_heads(count: int, declared: bool) -> None:
    """`(h d)` of several heads or of one a rank: the cache's heads are cut, its features are whole."""
    b = builder()
    text = f"[2, 33, 128, {count}/4@tp, 16]"
    cache = b.input("cache", (2, *ROWS, count // 4, 16), layout=text if declared else None)
    new = [b.input(name, (16, count * 4), layout=f"[T, {count * 16}/4@tp]") for name in ("k", "v")]
    slots = b.input("slots", (16,), "int64", "[T]")
    b.call("tensor_cast.reshape_and_cache.default", *new, cache, slots, shape=())
    sides = [b.call("aten.select.int", cache, 0, i, shape=(*ROWS, count // 4, 16)) for i in range(2)]
    q = b.input("q", (16, 128), layout="[T, 512/4@tp]")
    out = b.call("tensor_cast.attention.default", q, *sides, *(None,) * 5, shape=(16, 128))
    report = engine.check(joined(b, out))
    assert not report.errors
    assert report.layout_text("cache") == f"bf16{text}"
