"""Rotary position embedding in its two channel orders."""

import torch
from torch import Tensor

from instrumented_engine.model.config import ModelConfig


def rotary_table(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return cosines and sines, ``[max_positions, 2, 1, head_dim / 2]``, at least in float32.

    Angles are computed in float64: a half-precision position past 2048 is not even an exact integer.
    """
    steps = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float64)
    frequencies = config.rope_theta ** (-steps / config.head_dim)
    angles = torch.arange(config.max_positions, device=device, dtype=torch.float64)[:, None] * frequencies
    table = torch.stack((angles.cos(), angles.sin()), dim=1).unsqueeze(2)
    return table.to(torch.promote_types(dtype, torch.float32))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the channel pairs of ``x [T, heads, head_dim]`` by ``cos, sin [T, 1, head_dim / 2]``; dtype kept."""
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    rotated = (first * cos - second * sin, first * sin + second * cos)
    joined = torch.stack(rotated, dim=-1).flatten(-2) if interleaved else torch.cat(rotated, dim=-1)
    return joined.to(x.dtype)
