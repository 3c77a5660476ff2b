"""The caches: keys and values, and the indexer's keys, in blocks."""

from __future__ import annotations

from dataclasses import dataclass

from layoutcheck.errors import InputError
from layoutcheck.memory.build import kv_repeats
from layoutcheck.memory.engines import load_engine
from layoutcheck.memory.formula import evaluate, product
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.plan import Plan
from layoutcheck.models import ModelConfig
from layoutcheck.units import DTYPE_BYTES, dtype_name


@dataclass(frozen=True)
class Cache:
    """What is to be cached.

    Attributes:
        context: tokens of a sequence.
        sequences: how many sequences a rank holds.
        block: tokens of a block; None is what the engine profile says.
        dtype: of keys and values; None is the model's.
        index_dtype: of the indexer's keys; None is the model's. Narrow ones bring a scale a token.
        ranks: how many ranks share the tokens of a sequence (context parallel decode).
    """

    context: int
    sequences: int = 1
    block: int | None = None
    dtype: str | None = None
    index_dtype: str | None = None
    ranks: int = 1


def _dtypes(config: ModelConfig, cache: Cache) -> tuple[str, str]:
    return (
        dtype_name(cache.dtype) if cache.dtype else config.dtype,
        dtype_name(cache.index_dtype) if cache.index_dtype else config.dtype,
    )


def block_size(plan: Plan, cache: Cache) -> int:
    """Return the tokens of a block."""
    size = cache.block or int(load_engine(plan.engine).values.get("cache", {}).get("block", 1))
    if size < 1:
        raise InputError(f"a block of {size} tokens")
    return size


def _layers(config: ModelConfig, plan: Plan) -> range:
    engine = load_engine(plan.engine)
    mtp = bool(engine.values.get("mtp")) if plan.mtp is None else plan.mtp
    return range(config.num_layers + (config.mtp_layers if mtp else 0))


def token_formulas(config: ModelConfig, plan: Plan, cache: Cache) -> dict[str, tuple[str, str, int]]:
    """Return, by category, the bytes of one token on a rank over all layers: (formula, shape, layers).

    Latent attention keeps ``kv_lora_rank + qk_rope_head_dim`` values, whole on every rank; otherwise each
    rank keeps keys and values of its heads. An indexer keeps one key in the layers that own one.
    """
    kv_dtype, index_dtype = _dtypes(config, cache)
    layers = _layers(config, plan)
    if config.latent is not None:
        one = "kv_lora_rank + qk_rope_head_dim"
    elif kv_repeats(config, plan.parallel.tp):
        one = "2*head_dim"
    else:
        one = "2*(num_key_value_heads/tp)*head_dim"
    found = {"kv-cache": (product(len(layers), one, DTYPE_BYTES[kv_dtype]), f"[{one}]", len(layers))}
    if config.indexer is not None:
        owners = sum(config.layer_owns_indexer(layer) for layer in layers)
        size = product("index_head_dim", DTYPE_BYTES[index_dtype])
        if DTYPE_BYTES[index_dtype] == 1:
            scale = "float16" if index_dtype == "int8" else "float32"
            size += f" + {DTYPE_BYTES[scale]}"
        found["indexer-cache"] = (product(owners, size), "[index_head_dim]", owners)
    return found


def bytes_per_token(config: ModelConfig, plan: Plan, cache: Cache, symbols: dict[str, int]) -> int:
    """Return the bytes that one cached token takes on a rank, over all layers."""
    return sum(evaluate(f, symbols) for f, _, _ in token_formulas(config, plan, cache).values())


def add_cache(ledger: Ledger, config: ModelConfig, plan: Plan, cache: Cache) -> None:
    """Add the lines of the caches to a ledger.

    Raises:
        InputError: a number is not positive.
    """
    if cache.context < 0 or cache.sequences < 0 or cache.ranks < 1:
        raise InputError("context and sequences are at least 0, ranks at least 1")
    ledger.symbols |= {
        "context": cache.context,
        "sequences": cache.sequences,
        "block": block_size(plan, cache),
        "cache_ranks": cache.ranks,
    }
    kv_dtype, index_dtype = _dtypes(config, cache)
    share = "context" if cache.ranks == 1 else "ceil(context, cache_ranks)"
    for category, (formula, shape, layers) in token_formulas(config, plan, cache).items():
        tensor_parallel = config.latent is None and category == "kv-cache"
        ledger.add(
            category,
            "keys and values" if category == "kv-cache" else "indexer keys",
            product("sequences", f"pad({share}, block)", formula),
            dtype=kv_dtype if category == "kv-cache" else index_dtype,
            shape=shape,
            count=layers,
            split=f"1/{plan.parallel.tp} (tp)" if tensor_parallel and plan.parallel.tp > 1 else "replicated",
            note="in whole blocks"
            + ("" if category == "kv-cache" else "; layers that share an index own none"),
        )
