"""How long a collective takes: latency and bandwidth by algorithm, rank count and network tier.

Bytes are named the same way for every collective: ``size`` is the *whole* buffer. It is the gathered one of
an all_gather, the one before a reduce_scatter, the vector of an all_reduce, and what one rank holds before
an all_to_all.

Three forms of a fit (``structure.form``), each with at most four constants:

``pipelined`` (NCCL)::

    start + step (p - 1) + w / b + pipe (w / link)^exponent

with w the bytes a rank moves over its link and b = ``bandwidth`` x link. A ring of p - 1 steps, whose chunks
shrink with the message: the best chunk leaves a term in the root of the bytes. ``own`` counts part of the
rank's own share as moved, since it is copied.

``protocols`` (HCCL's rings)::

    up to a share of ``switch`` bytes a rank:  latency + w / (b sqrt((p - 1) / (n - 1)))
    above:                                     jump x rounds + w / b

The latency is ``near`` x sqrt(p / 2) for a few ranks, ``node`` from more than ``structure.near`` ranks to the n
of a node, ``beyond`` on more. Small messages use as many links at once as there are peers, and reach the whole
link in a full node; the second protocol does at once. Outside a node the switch counts the bytes of a node's
ranks together, and an all_reduce is two operations, each with its jump. ``jump``, the share of the link that
b is (``links``) and that of two dies (``pair``) are HCCL's, shared by its operations.

``direct`` (HCCL's exchange)::

    knee(latency, w / b)

with ``near`` and ``node`` as above, and b = ``bandwidth`` x link, of which a pair of dies has ``pair``.

Ranks beyond a node add the network between nodes: every rank exchanges with those of its place in the other
nodes first. No collection here measured that; it is latency plus bytes over the tier's bandwidth.
"""

from __future__ import annotations

import math

from layoutcheck.cost.algebra import Num, maximum, minimum, power, smooth_max, where
from layoutcheck.cost.hardware import Fit, Hardware, Tier
from layoutcheck.cost.work import Work
from layoutcheck.errors import InputError

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
_ASSUMED_SHARE = 0.7


def wire_bytes(op: str, size: Num, ranks: Num) -> Num:
    """Return the bytes that a rank sends.

    Raises:
        InputError: not a collective.
    """
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return size * (ranks - 1) / ranks
    if op == "all_reduce":
        return 2 * size * (ranks - 1) / ranks
    if op == "broadcast":
        return size
    raise InputError(f"no collective is called {op!r}; there are {', '.join(COLLECTIVES)}")


def work(op: str, size: Num, ranks: Num) -> Work:
    """Return the collective's wire bytes, and its reads and writes of memory on one rank."""
    wire = wire_bytes(op, size, ranks)
    share = size / ranks
    if op == "all_gather":
        return Work(read=share, write=size, wire=wire)
    if op == "reduce_scatter":
        return Work(flops=size - share, read=size, write=share, wire=wire, dtype="float32")
    return Work(read=size, write=size, wire=wire)


def fit_of(hardware: Hardware, op: str) -> Fit:
    """Return the constants of a collective; a broadcast takes those of an all_gather, which moves as much."""
    for name in (op, "all_gather" if op == "broadcast" else op):
        if name in hardware.collectives:
            return hardware.collectives[name]
    return Fit({"bandwidth": _ASSUMED_SHARE}, {"form": "plain"})


def time_us(hardware: Hardware, op: str, size: Num, ranks: int, *, fit: Fit | None = None) -> Num:
    """Return the microseconds of a collective over ``ranks`` neighbouring ranks.

    Args:
        op: one of :data:`COLLECTIVES`.
        size: bytes of the whole buffer (see the module's text); integer, array or symbol.
        ranks: size of the group, which fills nodes one after the other.
        fit: constants; by default the hardware's.

    Raises:
        InputError: not a collective, or ranks do not fill whole nodes.
    """
    fit = fit or fit_of(hardware, op)
    wire_bytes(op, size, 2)  # refuses what is no collective
    if ranks <= 1:
        return 0 * size
    node = _reach(hardware, fit)
    if ranks <= node.ranks:
        return _inside(node, fit, op, size, ranks)
    nodes, rest = divmod(ranks, node.ranks)
    if rest:
        raise InputError(f"{ranks} ranks do not fill nodes of {node.ranks} on {hardware.name}")
    outer = hardware.tier_of(ranks)
    return _inside(node, fit, op, size, node.ranks) + _between(outer, op, size, nodes, node.ranks)


def _reach(hardware: Hardware, fit: Fit) -> Tier:
    """The tier whose links the constants were fitted on: a node's, unless they were measured further on this hardware."""
    node = hardware.node
    furthest = int(fit.shape("ranks", 0))
    if fit.measured and furthest > node.ranks:
        return Tier(node.name, furthest, node.bandwidth, node.latency)
    return node


def _inside(tier: Tier, fit: Fit, op: str, size: Num, ranks: int) -> Num:
    form = fit.shape("form", "plain")
    moved = wire_bytes(op, size, ranks)
    if form == "pipelined":
        moved = moved + float(fit.shape("own", 0.0)) * size / ranks
        links = moved / tier.bandwidth
        steady = links / fit.get("bandwidth", _ASSUMED_SHARE)
        pipe = fit.get("pipe", 0.0) * power(links, float(fit.shape("exponent", 0.5)))
        return fit.get("start", tier.latency) + fit.get("step", 0.0) * (ranks - 1) + steady + pipe
    if form == "protocols":
        return _protocols(tier, fit, op, moved, size / ranks, ranks)
    if form == "direct":
        pair = fit.constants["pair"] if ranks == 2 else 1.0
        steady = moved / (fit.constants["bandwidth"] * pair * tier.bandwidth)
        return smooth_max(_latency(fit, ranks), steady, int(fit.shape("knee", 1)))
    return tier.latency * (ranks - 1) + moved / (tier.bandwidth * fit.get("bandwidth", _ASSUMED_SHARE))


def _latency(fit: Fit, ranks: int) -> float:
    """What a small message costs: it grows with the peers while they are few."""
    if ranks <= int(fit.shape("near", ranks)):
        return fit.constants["near"] * math.sqrt(ranks / 2)
    beyond = ranks > int(fit.shape("node", ranks))
    return fit.get("beyond", fit.constants["node"]) if beyond else fit.constants["node"]


def _protocols(tier: Tier, fit: Fit, op: str, moved: Num, share: Num, ranks: int) -> Num:
    node = int(fit.shape("node", tier.ranks))
    switch = fit.constants["switch"] / (node if ranks > node else 1)
    rate = float(fit.shape("links", _ASSUMED_SHARE)) * tier.bandwidth
    small = _latency(fit, ranks) + moved / (rate * math.sqrt((ranks - 1) / max(node - 1, 1)))
    rounds = 1 if op != "all_reduce" else 4 if ranks > node else 2
    pair = float(fit.shape("pair", 1.0)) if ranks == 2 else 1.0
    large = float(fit.shape("jump", 0.0)) * rounds + moved / (rate * pair)
    return where(share, switch, small, large)


def _between(tier: Tier, op: str, size: Num, nodes: int, per_node: int) -> Num:
    """The network between nodes: a ring over the nodes, or a direct exchange for an all_to_all."""
    rate = tier.bandwidth * _ASSUMED_SHARE
    if op == "all_to_all":
        return tier.latency + size * (nodes - 1) / nodes / rate
    if op == "broadcast":
        return tier.latency * (nodes - 1) + size / per_node / rate
    rounds = 2 if op == "all_reduce" else 1
    return rounds * (tier.latency * (nodes - 1) + size / per_node * (nodes - 1) / nodes / rate)


def cheaper_all_reduce_us(hardware: Hardware, size: Num, ranks: int) -> Num:
    """Return the microseconds of an all_reduce, or of reduce_scatter and all_gather where that is faster."""
    two = time_us(hardware, "reduce_scatter", size, ranks) + time_us(hardware, "all_gather", size, ranks)
    return minimum(time_us(hardware, "all_reduce", size, ranks), two)


def exposed_us(collective: Num, compute: Num, overlapped: bool) -> Num:
    """Return what a collective adds to the time beside ``compute``: what of it is not hidden, if they
    overlap.

    For weights that are broadcast or gathered for a layer while the layers before it run.
    """
    return maximum(0, collective - compute) if overlapped else collective
