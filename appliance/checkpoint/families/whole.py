"""Whether a checkpoint has all that its family's layers consist of. Pure.

Rules:
- Each layer that has experts by the configuration has all of them, and their tensors are of the same size: the engine
  keeps them as rows of one tensor. Different layers may differ (a quantiser may choose bits by layer).
- What three quarters of the layers of a kind have (dense ones, ones with experts), all must have. So a projection that
  is lost is found, and an indexer that some layers have by design is not missed.
- An embedding, and a head unless it is tied to it.
A draft that is left out altogether is no fault: packs often leave it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from appliance.checkpoint.families.base import Family, matrix_and_part
from appliance.checkpoint.families.experts import Bank, Banks
from appliance.checkpoint.families.kinds import TensorClass

_MOST = 5
"""Faults that are told one by one."""


def faults(family: Family, banks: Banks, named: Mapping[str, TensorClass]) -> str:
    """What is missing, for people; "" when the checkpoint is whole. `named`: all tensors that are no experts'."""
    found = list(islice(_all(family, banks, named), _MOST + 1))
    if len(found) > _MOST:
        found[_MOST:] = ["and more"]
    return "; ".join(found)


def _all(family: Family, banks: Banks, named: Mapping[str, TensorClass]) -> Iterator[str]:
    shape = family.shape
    if not 0 < shape.top_k <= shape.experts:
        yield f"the configuration says that a token visits {shape.top_k} of {shape.experts} experts"
    yield from (f"{name} cannot be divided by its experts" for name in banks.uneven)
    yield from _experts("layer", banks.of(draft=False), shape.moe_layers, shape.experts)
    yield from _experts("draft layer", banks.of(draft=True), range(shape.draft_layers), shape.draft_experts)
    yield from _layers(family, named)
    present = set(named.values())
    if TensorClass.EMBEDDING not in present:
        yield "there is no token embedding"
    elif TensorClass.HEAD not in present and not _tied(family):
        yield "there is no output head, and the configuration does not tie it to the embedding"


def _tied(family: Family) -> bool:
    return family.config.get("tie_word_embeddings") is True or "general.architecture" in family.config


def _experts(what: str, banks: Mapping[int, Bank], layers: Iterable[int], experts: int) -> Iterator[str]:
    expected = set(layers)
    for layer in sorted(expected | banks.keys()):
        where = f"{what} {layer}"
        if layer not in banks:
            yield f"{where} has no experts; the configuration says {experts}"
        elif layer not in expected:
            yield f"{where} has experts; by the configuration it has none"
        else:
            yield from _bank(where, banks[layer], experts)


def _bank(where: str, bank: Bank, experts: int) -> Iterator[str]:
    wanted = set(range(experts))
    seen: set[int] = set().union(*(rows.sizes for rows in bank.values()))
    if wanted - seen:
        yield f"{where} lacks {_numbers(wanted - seen)}"
    if seen - wanted:
        yield f"{where} has {_numbers(seen - wanted)}, beyond the {experts} of the configuration"
    for parameter, rows in sorted(bank.items()):
        absent = (seen & wanted) - rows.sizes.keys()
        if absent:
            yield f"{where}: {_numbers(absent)} without {parameter}"
            continue
        sizes = sorted(rows.sizes.values())
        usual = sizes[len(sizes) // 2]
        odd = {expert for expert, size in rows.sizes.items() if size != usual}
        if odd:
            size = rows.sizes[min(odd)]
            yield f"{where}: {parameter} of {_numbers(odd)} is not like the others' ({size} B, not {usual} B)"


def _numbers(experts: set[int]) -> str:
    first = ", ".join(str(expert) for expert in sorted(experts)[:_MOST])
    more = f" and {len(experts) - _MOST} more" if len(experts) > _MOST else ""
    return f"expert{'s' if len(experts) > 1 else ''} {first}{more}"


def _layers(family: Family, named: Mapping[str, TensorClass]) -> Iterator[str]:
    having: dict[tuple[bool, str], set[int]] = defaultdict(set)
    sparse = set(family.shape.moe_layers)
    for name, cls in named.items():
        block = family.block(matrix_and_part(name)[0])
        if block is not None and not block.draft and cls is not TensorClass.OTHER:
            having[block.layer in sparse, block.rest].add(block.layer)
    for (is_sparse, rest), layers in sorted(having.items()):
        kind = sparse if is_sparse else set(range(family.shape.layers)) - sparse
        if len(layers) < len(kind) <= len(layers) * 4 / 3:
            lost = sorted(kind - layers)
            yield f"layer {lost[0]} has no {rest}, unlike {len(layers)} others"
