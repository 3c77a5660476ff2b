"""Refusals of what would have been right, each with the reason why it stays refused; and rules that no sample
covers, with the reason.
"""

from __future__ import annotations

import re

MISSING: tuple[tuple[str, str], ...] = (
    (r"hc_post", "the parallel streams are a handful and no program shards or sums them"),
    (
        r"view(_copy)?\.dtype",
        "the bits of a pending sum in another dtype: the identity here, since both dtypes are one",
    ),
    (r"reshape_and_cache|minimax_sparse_attention.*Partial", "a cache is never a pending sum"),
    (
        r"layoutcheck\.branch",
        "one branch alone would do; which one is taken, the data decide",
    ),
    (r"linear_attn_causal_conv", "linear without the activation that kernels end in"),
    (r"block_sparse_attention|attention_route_generate", "holds where no block crosses a share"),
    (r"tensor_indices_or_sections", "which pieces come out is decided by data, so nothing passes"),
    (r"apply_padding_mask.*attention_mask\[t\]=Partial", "linear in the mask, which is never a pending sum"),
    (r"gated_rmsnorm.*weight\[h\]=Partial", "linear in a weight that is never a pending sum"),
    (
        r"addmm|baddbmm|addmv|_scaled_mm.*bias|aten\.linear.*bias|static_quant_linear.*bias|matmul_all_reduce.*bias|conv1d.*bias",
        "a bias given in parts beside a pending product: true, but no program keeps biases as summands",
    ),
    (
        r"(rms_norm|layer_norm).*(weight|bias|shift)\[.*=Partial|fused_rope.*cos_sin\[.*=Partial|heaviside.*values|W_UV\[.*=Partial|modulated",
        "linear in a weight: a weight that is a pending sum is a mistake wherever it was met",
    ),
    (
        r"apply_rope|fused_rope",
        "rotation is linear, but its operands are normed or projected: a pending sum there is a forgotten reduction",
    ),
    (
        r"aten\.(any|all)\.",
        "or and and over shards: right only where a shard's answer happens to be the whole's, as with random truth values",
    ),
    (
        r"isnan|isinf|isposinf|isneginf|isfinite|nan_to_num",
        "holds for finite numbers, which is what is drawn",
    ),
    (
        r"logical_(and|or|xor|not)|isclose|eq\.Tensor|ne\.Tensor|signbit|heaviside",
        "a truth value that most summands share",
    ),
    (r"unique_consecutive", "holds where no run of equal rows crosses a share"),
    (r"nansum", "a sum while no summand is undefined"),
    (r"(lshift|left_shift)", "a shift is a product with a power of two, until it overflows"),
    (
        r"gcd|lcm|sign|sgn|clamp|threshold|floor|ceil|round|trunc|frac",
        "holds where the drawn numbers do not cross a step",
    ),
    (r"addcmul|lerp|gated_residual_add|addcdiv", "linear in another pair of operands than the rule names"),
    (
        r"scatter|index_put|index_add|index_copy|index_fill|slice_scatter|masked_select|take",
        "everything is overwritten, or nothing is: depends on the positions' values",
    ),
    (
        r"dim 1\) |reduce_scatter",
        "scattering features: right, and never meant where tokens stand on another axis",
    ),
    (
        r"conv1d|conv2d|aten\.convolution",
        "a kernel of one element, or channels summed over: right, but convolutions stand in front of decoders only",
    ),
    (r"slice.*all but the first token", "a slice that is empty at one token"),
    (r"expand_as|view_as|reshape_as", "a tensor's shape as a size"),
    (r"scaled_dot_product_attention.*attn_mask\[t s\]", "a mask without a head axis"),
    (
        r"all_gather|all_reduce|slice.Tensor.*at the rank|narrow.*at the rank",
        "a collective on a value that happens to be one token",
    ),
)


def reason(text: str) -> str | None:
    """Why a refusal (the combination in words) stands; None where nobody has said."""
    return next((why for pattern, why in MISSING if re.search(pattern, text)), None)


UNCOVERED: tuple[tuple[str, str], ...] = (
    (
        r"_internal_copy_region",
        "stands for the repeats of a region, which are written out before a graph runs: judged in whole programs",
    ),
    (
        r"c10d\.(allgather_|reduce_scatter_|alltoall_)$",
        "lists of tensors are written out before typing: judged in whole programs",
    ),
    (
        r"tensor_cast\.unpermute_tokens",
        "puts back what init_routing_v2 has dispatched, and no layout but a dispatch's says so: judged in whole programs",
    ),
)


def uncovered(target: str) -> str | None:
    """Why a rule has no sample; None where nobody has said."""
    return next((why for pattern, why in UNCOVERED if re.search(pattern, target)), None)


def never_runs(sample: object) -> bool:
    """Samples of ops that torch does not define on real numbers, or whose first operand cannot be broadcast in
    place.
    """
    text = f"{getattr(sample, 'target', '')} {getattr(sample, 'note', '')}"
    return bool(re.search(r"aten\.(imag|_conj)\b|__i(and|or|xor)__.* h against t h", text))
