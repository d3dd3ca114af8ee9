"""The language model: everything between token ids and the next token id, with no scheduling in it.

Rooms an API process may import (they never import torch):
    source          what a ``--model`` argument means
    config          the shape of a model
    tokenizers      text to ids and back, also streamed; ``gguf_tokenizer``, ``hf_tokenizer``, ``byte_level`` and
                    ``chat`` serve it
    sampling        what a request may ask of the sampler
    gguf_file       reading GGUF files
    hf_directory    reading a Hugging Face directory's JSON files

Rooms of the core process (torch):
    batch           what one forward pass needs to know
    cache           key/value storage, addressed by slot
    rope, attention, llama
                    the network
    loaders         ``load_model``; ``weight_files`` serves it
    sampler         logits to token ids
"""
