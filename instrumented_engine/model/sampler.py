"""Logits to token ids."""

from collections.abc import Sequence

import torch
from torch import Tensor

from instrumented_engine.model.sampling import SamplingParams


def make_generator(params: SamplingParams) -> torch.Generator | None:
    """Return the random numbers of one request, to be kept as long as it lives, or None if it gave no seed."""
    return None if params.seed is None else torch.Generator().manual_seed(params.seed)


def sample(logits: Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator | None]) -> list[int]:
    """Choose one token id for each row.

    A row that is not greedy takes exactly one number from its generator (None is torch's default one), so a seeded
    request gets the same tokens whatever else is in the batch.

    Args:
        logits: ``[S, vocab] float32``, finite.
        params: What each of the S requests asks.
        generators: S generators, on the CPU wherever the logits are.

    Raises:
        ValueError: the lengths differ.
    """
    if not len(logits) == len(params) == len(generators):
        raise ValueError(f"{len(logits)} rows, {len(params)} parameters and {len(generators)} generators do not match.")
    with torch.inference_mode():
        chosen = logits.argmax(dim=-1)
        for row, (wish, generator) in enumerate(zip(params, generators, strict=True)):
            if not wish.greedy:
                chosen[row] = _draw(logits[row], wish, generator)
        ids: list[int] = chosen.tolist()
        return ids


def log_probabilities(logits: Tensor, tokens: Sequence[int], width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's log probability of its token, and the ids and log probabilities of the likeliest ones.

    Those of the model itself, before temperature, top-k and top-p.

    Args:
        logits: ``[S, vocab] float32``, finite.
        tokens: The S tokens that were chosen.
        width: How many likeliest tokens.

    Returns:
        ``[S]``, ``[S, width]`` and ``[S, width]``, on the CPU.
    """
    with torch.inference_mode():
        shares = logits.log_softmax(dim=-1)
        chosen = shares.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        top, ids = shares.topk(min(width, shares.shape[1]))
        return chosen.cpu(), ids.cpu(), top.cpu()


def _draw(logits: Tensor, params: SamplingParams, generator: torch.Generator | None) -> Tensor:
    probabilities, ids = _top_k((logits / params.temperature).softmax(dim=-1), params.top_k)
    if params.top_p < 1:
        probabilities, ids = _top_p(probabilities, ids, params.top_p)
    # In float64 a float32 below 1 times the total stays below the total, so the search cannot run off the end.
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.rand(1, generator=generator).to(cumulative.device)
    return ids[torch.searchsorted(cumulative, uniform * cumulative[-1:], right=True)][0]


def _top_k(probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if 0 < count < len(probabilities):
        values, ids = probabilities.topk(count)
        return values / values.sum(), ids
    return probabilities, torch.arange(len(probabilities), device=probabilities.device)


def _top_p(probabilities: Tensor, ids: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    # Tokens below this share can together not hold the mass that is left out, so none of them is kept; without them
    # there is little to sort. Halved to be safe from rounding.
    likely = probabilities >= (1 - mass) / (2 * len(probabilities))
    values, order = probabilities[likely].sort(descending=True, stable=True)
    kept = int(torch.searchsorted(values.cumsum(dim=-1, dtype=torch.float64), mass)) + 1
    return values[:kept], ids[likely][order[:kept]]
