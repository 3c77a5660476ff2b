"""Build the ledger of a rank from a model's figures."""

from __future__ import annotations

from layoutcheck.errors import InputError
from layoutcheck.memory.engines import load_engine
from layoutcheck.memory.formula import evaluate
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import HuggingFace, Quantisation, Unquantised
from layoutcheck.memory.templates import Builder, Template
from layoutcheck.models import ModelConfig


def quantisation_of(config: ModelConfig) -> Quantisation:
    """Return what the config's own ``quantization_config`` says, or that there is none."""
    return Unquantised() if config.quantization is None else HuggingFace(config.quantization)


def symbols_of(config: ModelConfig, plan: Plan) -> dict[str, int]:
    """Return every symbol that a line's formula may use, for the plan's rank."""
    engine = load_engine(plan.engine)
    experts = config.experts.count if config.experts else 0
    found = config.symbols() | plan.parallel.symbols(plan.rank, experts)
    found["tp_rank"] = plan.rank % plan.parallel.tp
    found["vocab_multiple"] = int(engine.values.get("vocab_multiple", 1))
    found["max_tokens"] = plan.max_tokens
    return found


def kv_repeats(config: ModelConfig, tp: int) -> bool:
    """Whether ranks repeat key-value heads, because there are fewer of them than ranks.

    Raises:
        InputError: neither number divides the other.
    """
    heads = config.num_key_value_heads
    if config.latent is not None or heads % tp == 0:
        return False
    if tp % heads:
        raise InputError(f"{heads} key-value heads and tp {tp}: neither divides the other")
    return True


def weight_ledger(config: ModelConfig, plan: Plan, quantisation: Quantisation | None = None) -> Ledger:
    """Return the ledger of everything that lies on a rank before the first token.

    Args:
        config: the model's figures.
        plan: engine profile, group sizes, rank and options.
        quantisation: which scheme each module has; by default what the config says.

    Raises:
        InputError: a size does not divide, the parts of a fused module have different types, or the plan
            asks for something that model or engine do not have.
    """
    quantisation = quantisation_of(config) if quantisation is None else quantisation
    builder = Builder(config, quantisation, plan, kv_repeats(config, plan.parallel.tp))
    templates = builder.templates()
    ledger = Ledger(f"{config.name}, {plan}", plan.rank, symbols_of(config, plan))
    for template in templates:
        add_template(ledger, template)
    ledger.notes += [*config.notes, *quantisation.notes, *builder.notes]
    ledger.loading_peak = loading_peak(ledger, templates, plan)
    return ledger


def add_template(ledger: Ledger, template: Template) -> None:
    """Evaluate a template with the ledger's symbols and add its line."""
    divisor = evaluate(template.divisor, ledger.symbols)
    split = "replicated" if template.group == "replicated" else f"1/{divisor} ({template.group})"
    ledger.add(
        template.category,
        template.name,
        template.formula,
        tensors=template.tensors,
        dtype=template.dtype,
        shape=template.shape,
        count=evaluate(template.count, ledger.symbols),
        split=split,
        scheme=template.scheme,
        state=template.state,
        note=template.note,
    )


def loading_peak(ledger: Ledger, templates: list[Template], plan: Plan) -> int:
    """Return the most bytes that lie on the rank while weights are loaded and converted.

    All weights are loaded first. Then the quantised ones are converted module by module, each with a
    temporary copy; then weights are derived layer by layer, an original that is freed only after its
    layer's derived weights are there.
    """
    copies = int(load_engine(plan.engine).values.get("conversion", {}).get("copies", 0))
    copied = max(
        (
            evaluate(t.per_layer, ledger.symbols)
            for t in templates
            if t.scheme != "FLOAT" and t.category != "companions"
        ),
        default=0,
    )
    # per layer, since originals are freed layer by layer
    derived_layer = sum(evaluate(t.per_layer, ledger.symbols) for t in templates if t.category == "derived")
    derived = ledger.total(["derived"])
    loaded = ledger.static - derived + ledger.total(state="load")
    freed = any(line.state == "load" and line.category != "companions" for line in ledger.lines)
    return loaded + max(copies * copied, derived_layer if freed else derived)
