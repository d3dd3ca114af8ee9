"""A Hugging Face model directory: its JSON files and the model shape; no torch here, the API process imports it."""

import json
from pathlib import Path
from typing import Any

from instrumented_engine.model.config import ModelConfig
from instrumented_engine.model.source import HF_WEIGHTS, HF_WEIGHTS_INDEX, ModelUnavailable

ARCHITECTURE = "llama"
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"


class HfDirectory:
    """A directory as ``save_pretrained`` writes it.

    Attributes:
        path: The directory.
        config: What ``config.json`` holds.
    """

    def __init__(self, path: Path) -> None:
        """Read ``config.json``.

        Raises:
            ModelUnavailable: the file is missing or no JSON object.
        """
        self.path = path
        self.config = self.require(CONFIG)

    def require(self, name: str) -> dict[str, Any]:
        """Return a JSON file's object.

        Raises:
            ModelUnavailable: the file is missing or no JSON object.
        """
        content = self.read(name)
        if content is None:
            raise ModelUnavailable(f"The model directory {self.path} lacks {name}.")
        return content

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a JSON file's object, None if there is no such file.

        Raises:
            ModelUnavailable: the file is no JSON object.
        """
        try:
            content = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ModelUnavailable(f"{self.path / name} holds no JSON object.")
        return content

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embedding."""
        return bool(self.config.get("tie_word_embeddings", False))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer, as the two configuration files name them."""
        generation = self.read(GENERATION_CONFIG) or {}
        named = [generation.get("eos_token_id"), self.config.get("eos_token_id")]
        ids = [token for name in named for token in (name if isinstance(name, list) else [name])]
        return frozenset(int(token) for token in ids if token is not None)

    def shards(self) -> list[Path]:
        """Return the safetensors files that together hold the weights.

        Raises:
            ModelUnavailable: the index names no files.
        """
        index = self.read(HF_WEIGHTS_INDEX)
        if index is None:
            return [self.path / HF_WEIGHTS]
        places = index.get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ModelUnavailable(f"{self.path / HF_WEIGHTS_INDEX} has no weight_map.")
        return [self.path / Path(str(name)).name for name in sorted(set(places.values()))]


def read_hf_config(directory: HfDirectory) -> ModelConfig:
    """Return the shape of the model in a directory.

    Raises:
        ModelUnavailable: another architecture, a missing size, or a variant of Llama that is not computed here.
    """
    config = directory.config
    if config.get("model_type") != ARCHITECTURE:
        raise ModelUnavailable(
            f"{directory.path} holds a {config.get('model_type')} model, and only {ARCHITECTURE} models are served."
        )
    for key, served in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if config.get(key, served) != served:
            raise ModelUnavailable(f"{directory.path} has {key} {config[key]!r}, which is not supported.")
    try:
        return _config(config)
    except KeyError as error:
        raise ModelUnavailable(f"{directory.path / CONFIG} lacks {error.args[0]}.") from error
    except (TypeError, ValueError) as error:
        raise ModelUnavailable(f"{directory.path / CONFIG} describes no usable model: {error}") from error


def _config(config: dict[str, Any]) -> ModelConfig:
    hidden_size, num_heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelConfig(
        hidden_size=hidden_size,
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        max_positions=int(config["max_position_embeddings"]),
        rope_theta=_rope_theta(config),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
    )


def _rope_theta(config: dict[str, Any]) -> float:
    # transformers 5 writes rope_parameters, the releases before it rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise ValueError(f"rotary positions are scaled ({kind}), which is not supported")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
