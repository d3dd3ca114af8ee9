"""What one forward pass needs to know about the sequences in it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive prompt tokens of one sequence, computed in this pass.

    Attributes:
        start: First row of the chunk in the batch.
        length: Rows in the chunk.
        context_slots: ``[context] int64``, cache slots of all tokens of the sequence up to and including the chunk,
            oldest first; so ``context >= length``.
    """

    start: int
    length: int
    context_slots: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """T new tokens of several sequences: prefill chunks first, then one row per decoding sequence.

    A slot is ``block * block_size + offset``, the flat address of a token's key and value in every layer. All
    tensors are on the model's device.

    Attributes:
        token_ids: ``[T] int64``.
        positions: ``[T] int64``, place of each token in its own sequence, from 0.
        cache_slots: ``[T] int64``, where each token's key and value are written; no slot twice.
        prefills: Chunks covering rows ``0 .. decode_start``.
        decode_start: Rows from here to T are the D decodes, one token each.
        decode_slots: ``[D, max_context] int64``, slots of each decode's whole context including its new token,
            oldest first, padded with 0.
        decode_lengths: ``[D] int64``, unpadded context lengths, at least 1.
        logit_rows: ``[S] int64``, rows whose logits are wanted, in the order wanted.
    """

    token_ids: Tensor
    positions: Tensor
    cache_slots: Tensor
    prefills: tuple[PrefillChunk, ...]
    decode_start: int
    decode_slots: Tensor
    decode_lengths: Tensor
    logit_rows: Tensor
