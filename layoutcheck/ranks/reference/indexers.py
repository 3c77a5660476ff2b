"""The lightning indexer (DeepSeek-V3.2): which keys a query attends to.

score(t, s) = sum over heads h of w(t, h) relu(q(t, h) . k(s)); the best `topk_limit` positions up to the
query's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.attention import slots_of, write
from layoutcheck.ranks.reference.norms import layer_norm
from layoutcheck.ranks.reference.registry import reference
from layoutcheck.ranks.reference.rotary import rotate


def best(scores: Tensor, position: Tensor, limit: int) -> Tensor:
    """The `limit` best keys of each query [n, m], in order of score; -1 where there are fewer."""
    seen = torch.arange(scores.shape[1])[None] <= position[:, None]
    ranked = scores.masked_fill(~seen, float("-inf"))
    k = min(limit, scores.shape[1])
    values, at = ranked.topk(k, -1)
    at = torch.where(values == float("-inf"), -1, at)
    return torch.nn.functional.pad(at, (0, limit - k), value=-1)


@reference("tensor_cast.dsa_indexer")
def dsa_indexer(
    hidden_states: Tensor,
    qa_normed: Tensor,
    cos: Tensor,
    sin: Tensor,
    indexer_cache: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    wq_b_weight: Tensor,
    wk_weight: Tensor,
    weights_proj_weight: Tensor,
    k_norm_weight: Tensor,
    num_heads: int,
    head_dim: int,
    qk_rope_head_dim: int,
    topk_limit: int,
    query_lens: Any = None,
    *,
    is_decode_values: Any = None,
) -> Tensor:
    """Writes the keys of its tokens, scores every query against its sequence's keys, gives positions [.., t,
    topk_limit].
    """
    h = hidden_states.reshape(-1, hidden_states.shape[-1])
    latent = qa_normed.reshape(-1, qa_normed.shape[-1])
    c, s = cos.reshape(-1, cos.shape[-1]), sin.reshape(-1, sin.shape[-1])
    r = qk_rope_head_dim
    q = (latent @ wq_b_weight.T).unflatten(-1, (num_heads, head_dim))
    q = torch.cat([rotate(q[..., :r], c.unsqueeze(1), s.unsqueeze(1)), q[..., r:]], -1)
    k = layer_norm(h @ wk_weight.T, k_norm_weight, None, 1e-6)
    write(indexer_cache, slot_mapping, torch.cat([rotate(k[:, :r], c, s), k[:, r:]], -1))
    weights = h @ weights_proj_weight.T
    lens = query_lens if query_lens is not None else torch.tensor([h.shape[0]])
    out = torch.full((h.shape[0], topk_limit), -1, dtype=torch.int64)
    low = 0
    rows = indexer_cache.shape[1]
    for i, (n, keys) in enumerate(zip(lens.tolist(), seq_lens.tolist())):
        at = torch.arange(keys)
        own = slots_of(indexer_cache)[block_tables[i][at // rows] * rows + at % rows]
        part = slice(low, low + n)
        score = torch.einsum(
            "nh,nhm->nm", weights[part], torch.relu(torch.einsum("nhd,md->nhm", q[part], own))
        )
        out[part] = best(score, torch.arange(n) + keys - n, topk_limit)
        low += n
    return out.view(*hidden_states.shape[:-1], topk_limit)
