"""A small LLM inference engine whose every stage can be seen.

``api``     HTTP in, HTTP out: admission, tokenizer, the API's end of the sockets
``core``    input thread -> scheduler -> forward -> output thread
``model``   Llama in torch, loaders and tokenizers
``wire``    what travels between the two
"""
