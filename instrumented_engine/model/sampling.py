"""What a request may ask of the sampler; no torch here, the API process imports it."""

import math
from dataclasses import dataclass

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing logits by less leaves float32."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token; the defaults are those of the OpenAI API.

    Attributes:
        temperature: Divides the logits; 0 always takes the likeliest token.
        top_p: Keep the fewest likeliest tokens whose probabilities sum to this, in (0, 1].
        top_k: Keep only this many likeliest tokens; 0 keeps all. Applied before ``top_p``.
        seed: Makes the choices repeatable; a signed 64-bit number.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"The temperature must be 0 or a positive number, not {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}.")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or a positive count, not {self.top_k}.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"The seed must fit in a signed 64-bit number, which {self.seed} does not.")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is the only one that can be chosen."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1
