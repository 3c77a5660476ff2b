"""Strategies of hypothesis for layouts, op chains, decoder bodies and whole graphs."""

from __future__ import annotations

from typing import Any

from layoutcheck.contracts import Contract, contract_names, parse_contract
from layoutcheck.contracts.model import CHAIN, CONVERSIONS, OPERANDS, STATES
from layoutcheck.contracts.model import PLACES as BLOCKS_OF
from layoutcheck.contracts.read import FORMAT
from layoutcheck.graph import Graph
from layoutcheck.layout_text import parse_layout
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh, build_mesh
from layoutcheck.symbols import Size
from layoutcheck.testing.chains import STEPS, WAY_BACK, Chain
from layoutcheck.testing.decoder import CARRIED, KINDS, STYLES, WRITTEN_FOR, Decoder, Layers

try:
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover
    raise ImportError("layoutcheck.testing's strategies need hypothesis: pip install hypothesis") from error


PLACES = [(role, operand) for role, operands in OPERANDS.items() for operand in operands]


def small_mesh() -> Mesh:
    """Two groups: `tp` of 4 ranks next to each other, `dp` of 2."""
    return build_mesh([], {}, named_lists={"tp": (0, 1, 2, 3), "dp": (0, 4)}, rank=0)


@st.composite
def layouts(draw: Any, mesh: Mesh | None = None, partial: bool = True) -> Layout:
    """Layouts of two or three axes: rows of tokens T (16 a rank and group) and features, some of them cut over the groups.

    Args:
        mesh: a mesh with groups `tp` and `dp`; `small_mesh()` by default.
        partial: whether pending sums occur.
    """
    mesh = small_mesh() if mesh is None else mesh
    sizes = {"tp": 4, "dp": 2}
    free = draw(st.permutations(("tp", "dp")))
    extent = 16
    known: dict[str, Size] = {"T": extent}
    features = draw(st.lists(st.sampled_from((8, 32, 64)), min_size=1, max_size=2))
    shape = [extent, *features]
    texts = ["T", *[str(f) for f in features]]
    pending = ""
    for group in free:
        what = draw(
            st.sampled_from(
                ("full", "local", "sharded", "partial") if partial else ("full", "local", "sharded")
            )
        )
        if what == "local" and "/" not in texts[0]:
            texts[0] += f"/{sizes[group]}@{group}"
            shape[0] //= sizes[group]
        elif what == "sharded" and "/" not in texts[-1]:
            texts[-1] += f"/{sizes[group]}@{group}"
            shape[-1] //= sizes[group]
        elif what == "partial":
            pending += f" +{group}"
    text = f"[{', '.join(texts)}]{pending}"
    return parse_layout(text, mesh, draw(st.sampled_from(("bfloat16", "float32"))), tuple(shape), text, known)


@st.composite
def op_chains(
    draw: Any,
    max_steps: int = 6,
    streams: int = 1,
    wrong: bool = False,
    max_repeats: int = 4,
) -> Chain:
    """Bodies made of a few ops that end in the state that they began in.

    Args:
        max_steps: how many steps before the way back.
        streams: how many carried values at most.
        wrong: leave one step out, so that the program may be ill typed.
        max_repeats: how often the body runs at most (at least twice).
    """
    start = draw(st.sampled_from("fl"))
    state = start
    steps: list[str] = []
    for _ in range(draw(st.integers(1, max_steps))):
        legal = [name for name, (takes, _gives, _do) in STEPS.items() if state in takes]
        name = draw(st.sampled_from(legal))
        steps.append(name)
        gives = STEPS[name][1]
        state = state if gives == "=" else gives
    steps.extend(WAY_BACK[(state, start)])
    drop = draw(st.integers(0, len(steps) - 1)) if wrong else None
    return Chain(
        tuple(steps),
        local=start == "l",
        residual=draw(st.booleans()),
        repeats=draw(st.integers(2, max_repeats)),
        streams=draw(st.integers(1, streams)),
        drop=drop,
        width=draw(st.sampled_from((16, 32))),
        tokens=draw(st.sampled_from((16, 32))),
        ranks=draw(st.sampled_from((2, 4))),
    )


@st.composite
def bodies(draw: Any, kinds: tuple[str, ...] = KINDS, max_repeats: int = 3) -> Layers:
    """Repeated layers of one kind: dense, MoE, sparse latent attention, or a period of layers that reuse top-k indices."""
    kind = draw(st.sampled_from(kinds))
    return Layers(
        kind,
        repeats=draw(st.integers(2, max_repeats)),
        heads=draw(st.sampled_from((1, 2))),
        inner=draw(st.sampled_from((4, 8))),
        period=draw(st.integers(2, 4)) if kind == "reuse" else 1,
        nested=kind == "reuse" and draw(st.booleans()),
    )


@st.composite
def decoders(
    draw: Any,
    kinds: tuple[str, ...] = KINDS,
    carried: tuple[str, ...] = CARRIED,
    max_stacks: int = 2,
    max_repeats: int = 3,
    contract: str | None = None,
) -> Decoder:
    """Decoders of one or two stacks, in all styles of parallelism, with or without fused norms and an MTP block.

    Args:
        kinds: kinds of layers.
        carried: what goes from layer to layer.
        max_stacks: how many stacks at most.
        max_repeats: how many layers a stack has at most.
        contract: only decoders that keep this one of `WRITTEN_FOR`'s contracts; what it does not allow of `kinds` and `carried` is
            left out.
    """
    styles: tuple[str, ...] = STYLES
    if contract is not None:
        style, its_kinds, its_carried = WRITTEN_FOR[contract]
        styles = (style,)
        kinds = tuple(kind for kind in kinds if kind in its_kinds)
        carried = tuple(what for what in carried if what in its_carried)
    return Decoder(
        stack=tuple(draw(st.lists(bodies(kinds, max_repeats), min_size=1, max_size=max_stacks))),
        width=draw(st.sampled_from((16, 32))),
        tokens=draw(st.sampled_from((16, 32))),
        ranks=draw(st.sampled_from((2, 4))),
        style=draw(st.sampled_from(styles)),
        carried=draw(st.sampled_from(carried)),
        fused=draw(st.booleans()),
        mtp=draw(st.booleans()),
    )


@st.composite
def contracts(draw: Any, max_boundaries: int = 4, extends: bool = True) -> Contract:
    """Contracts of a few boundaries, each with one or several demands; some of them change a shipped contract.

    Args:
        max_boundaries: how many boundaries of its own it has at most.
        extends: whether some extend a shipped contract.
    """
    places = draw(
        st.lists(
            st.sampled_from(PLACES).flatmap(_in_blocks),
            min_size=1,
            max_size=max_boundaries,
            unique=True,
        )
    )
    boundaries = [draw(_boundaries(role, operand, where)) for (role, operand), where in places]
    document: dict[str, Any] = {"format": FORMAT, "name": "drawn", "boundaries": boundaries}
    if extends and draw(st.booleans()):
        document["extends"] = draw(st.sampled_from(contract_names()))
    return parse_contract(document)


@st.composite
def _boundaries(draw: Any, role: str, operand: str, where: str | None) -> dict[str, Any]:
    item: dict[str, Any] = {"role": role, "operand": operand}
    if where is not None:
        item["where"] = where
    counts = st.dictionaries(st.sampled_from(CONVERSIONS), _counts(), min_size=1, max_size=2)
    if role == "layer":
        return {**item, "count": draw(counts)}
    wants: dict[str, Any] = {
        "require": st.lists(st.sampled_from(STATES), min_size=1, max_size=2, unique=True),
        "at_most": st.sampled_from(tuple(CHAIN)),
        "at_least": st.sampled_from(tuple(CHAIN)),
        "via": st.lists(st.sampled_from(CONVERSIONS), max_size=2, unique=True),
        "count": counts,
    }
    if (role, operand) == ("residual", "output"):
        wants["carry"] = st.sampled_from(tuple(CHAIN))
    # `require` says all that the other two could
    names = draw(st.sets(st.sampled_from(sorted(wants)), min_size=1, max_size=2))
    if "require" in names or {"at_most", "at_least"} <= names:
        names = names - {"at_least", "at_most"} or {"at_most"}
    # what is carried may contradict what else is said of the place
    if "carry" in names:
        names = names - {"require", "at_least", "at_most"}
    return {**item, **{name: draw(wants[name]) for name in sorted(names)}}


def _in_blocks(place: tuple[str, str]) -> Any:
    """A place, in all blocks or in those of a kind in which its role occurs."""
    kinds = BLOCKS_OF[place[0]]
    where = st.none() | st.sampled_from(kinds) if kinds else st.none()
    return st.tuples(st.just(place), where)


def _counts() -> Any:
    """A number, or the least and the most."""
    pairs = st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda pair: [pair[0], sum(pair)])
    return st.integers(0, 3) | pairs


@st.composite
def graphs(draw: Any, form: str | None = None) -> Graph:
    """Whole well-typed graphs, expanded or with regions (`form`: `expanded`, `repeated`, or None for either)."""
    source = draw(st.one_of(op_chains(), decoders()))
    return source.build(form or draw(st.sampled_from(("expanded", "repeated"))))  # type: ignore[no-any-return]
