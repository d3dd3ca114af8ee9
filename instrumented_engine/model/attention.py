"""Grouped-query attention over a paged cache."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from instrumented_engine.model.batch import Batch, PrefillChunk


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A batch and its masks, which are the same in every layer; True means "may look".

    Attributes:
        batch: The batch.
        prefill_masks: Per chunk ``[length, context] bool``.
        decode_mask: ``[D, 1, 1, max_context] bool``.
    """

    batch: Batch
    prefill_masks: tuple[Tensor, ...]
    decode_mask: Tensor


def plan_attention(batch: Batch) -> AttentionPlan:
    """Build the masks of a batch."""
    columns = torch.arange(batch.decode_slots.shape[1], device=batch.decode_slots.device)
    decode_mask = columns < batch.decode_lengths[:, None]
    return AttentionPlan(batch, tuple(_causal_mask(chunk) for chunk in batch.prefills), decode_mask[:, None, None])


def _causal_mask(chunk: PrefillChunk) -> Tensor:
    # Bottom-right: the chunk's last row sees the whole context, so earlier chunks and cached prefixes are visible.
    context = len(chunk.context_slots)
    mask = torch.ones(chunk.length, context, dtype=torch.bool, device=chunk.context_slots.device)
    return mask.tril(context - chunk.length)


def paged_attention(queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> Tensor:
    """Attend from every row of the batch to its own sequence.

    Args:
        queries: ``[T, heads, head_dim]``.
        keys: One layer's cache ``[slots, kv_heads, head_dim]``, the new tokens already written.
        values: Likewise.
        plan: The batch's masks.

    Returns:
        ``[T, heads, head_dim]``.
    """
    batch = plan.batch
    output = torch.empty_like(queries)
    for chunk, mask in zip(batch.prefills, plan.prefill_masks, strict=True):
        rows = slice(chunk.start, chunk.start + chunk.length)
        output[rows] = _attend_chunk(queries[rows], keys[chunk.context_slots], values[chunk.context_slots], mask)
    if batch.decode_start < len(queries):
        slots = batch.decode_slots
        rows = slice(batch.decode_start, None)
        output[rows] = _attend_decodes(queries[rows], keys[slots], values[slots], plan.decode_mask)
    return output


def _attend_chunk(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (queries, keys, values))
    attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return attended.squeeze(0).transpose(0, 1)


def _attend_decodes(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    # One query token sees every key, so the query heads that share a key head can stand in the query-length
    # dimension: the same sums as enable_gqa without repeating the keys.
    rows, heads, head_dim = queries.shape
    grouped = queries.reshape(rows, keys.shape[2], -1, head_dim)
    attended = scaled_dot_product_attention(grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask)
    return attended.reshape(rows, heads, head_dim)
