"""Mixtures: values made of another one's rows, weighted, with its features as they are.

Hyper-connections carry several residual streams a token. A block reads a weighted sum of them, what it gives is weighted and
added to all of them, and the streams are mixed with each other on the way. The weights are narrow: the features of the streams
run through such ops unchanged, as the last axis of one operand.
"""

from __future__ import annotations

from layoutcheck.roles.flow import Flow

_STEPS = 12


def mixture_of(flow: Flow, value: int) -> int | None:
    """The operand whose rows a value is a mixture of; None where it is computed in another way, or is another's content."""
    if value >= flow.program.n_values:
        return None
    call = flow.maker[value]
    fact = flow.fact(call)
    of = flow.layout(value)
    if fact is None or of is None or not of.rank or flow.is_weight_product(call):
        return None
    if fact.attention or fact.indexer or fact.norm or fact.routes or fact.chooses or fact.carries:
        return None
    if not (fact.pointwise or fact.reduces or fact.factors or flow.is_product_of_activations(call)):
        return None
    rule = flow.program.instances[flow.program.op[call]].rule
    alike = []
    for v, param in zip(flow.program.inputs[call], fact.params):
        before = flow.layout(v)
        if flow.is_index(v) or (rule is not None and rule.kind == "elementwise" and param not in rule.linear):
            continue  # an activation weighs nothing: what it gives is another value, not rows of this one
        if flow.kinds[v] == "A" and before is not None and before.rank and before.shape[-1] == of.shape[-1]:
            alike.append(v)
    return alike[0] if len(alike) == 1 else None


def mixtures(flow: Flow, value: int) -> list[tuple[int, int]]:
    """What a value is a mixture of, nearest first: each operand with where its content was computed."""
    found: list[tuple[int, int]] = []
    for _ in range(_STEPS):
        before = mixture_of(flow, flow.root(value))
        if before is None:
            break
        found.append((before, flow.root(before)))
        value = before
    return found
