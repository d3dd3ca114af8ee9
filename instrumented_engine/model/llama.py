"""The Llama decoder over a paged key/value cache."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from instrumented_engine.model.attention import AttentionPlan, paged_attention, plan_attention
from instrumented_engine.model.batch import Batch
from instrumented_engine.model.cache import KVCache
from instrumented_engine.model.config import ModelConfig
from instrumented_engine.model.rope import rotary_table, rotate


class Llama(nn.Module):
    """A decoder whose device and dtype are those of the weights it is given.

    Weights are named as ``state_dict()`` of this module: ``embed``, ``layers.N.{attn_norm, qkv, attn_out, ffn_norm,
    gate_up, down}``, ``norm`` and ``head``, each with ``.weight`` of shape ``[out, in]``; ``qkv`` is query, key and
    value rows stacked, ``gate_up`` is gate and up rows stacked. Tied weights are the same tensor under two names.
    """

    rope: Tensor

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights without copying them.

        Raises:
            RuntimeError: a weight is missing, unknown or of another shape than ``config`` says.
        """
        super().__init__()
        self.config = config
        # On meta the layers have shapes but no memory: nothing is initialised only to be replaced.
        with torch.device("meta"):
            self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
            self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
            self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.load_state_dict(weights, assign=True)
        self.requires_grad_(requires_grad=False)
        self.register_buffer("rope", rotary_table(config, self.device, self.dtype), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are; a batch and a cache must be there too."""
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights; a cache must have the same."""
        return self.embed.weight.dtype

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into ``cache`` and return logits ``[S, vocab] float32``.

        Raises:
            IndexError: on the CPU, an id is not in the vocabulary, a position is not below ``max_positions`` or a
                slot is not in the cache. CUDA only reports these later and then unusably: check them beforehand.
        """
        with torch.inference_mode():
            plan = plan_attention(batch)
            cos, sin = self.rope[batch.positions].unbind(1)
            hidden: Tensor = self.embed(batch.token_ids)
            for layer in self.layers:
                hidden = layer(hidden, cos, sin, plan, cache)
            logits: Tensor = self.head(self.norm(hidden[batch.logit_rows]))
            return logits.float()


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        """Declare the weights of layer ``index``."""
        super().__init__()
        self.index = index
        self.config = config
        # Query, key and value in one product, gate and up in another: a decode step is mostly overhead per product.
        heads = config.num_heads + 2 * config.num_kv_heads
        self.attn_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.qkv = nn.Linear(config.hidden_size, heads * config.head_dim, bias=False)
        self.attn_out = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, cache: KVCache) -> Tensor:
        """Map ``hidden [T, hidden_size]`` to the next layer's; ``cos, sin`` are ``[T, 1, head_dim / 2]``."""
        hidden = hidden + self._attend(self.attn_norm(hidden), cos, sin, plan, cache)
        gate, up = self.gate_up(self.ffn_norm(hidden)).chunk(2, dim=-1)
        fed: Tensor = self.down(silu(gate) * up)
        return hidden + fed

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, cache: KVCache) -> Tensor:
        config = self.config
        qkv: Tensor = self.qkv(x).view(len(x), -1, config.head_dim)
        rotary_heads = config.num_heads + config.num_kv_heads
        rotated = rotate(qkv[:, :rotary_heads], cos, sin, interleaved=config.rope_interleaved)
        queries, keys = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        values = qkv[:, rotary_heads:]
        cache.write(self.index, plan.batch.cache_slots, keys, values)
        attended = paged_attention(queries, cache.keys[self.index], cache.values[self.index], plan)
        projected: Tensor = self.attn_out(attended.flatten(1))
        return projected
