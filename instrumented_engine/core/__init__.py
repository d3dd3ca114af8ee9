"""The core process: one model, one batch, one loop.

``input_thread``  frames -> messages -> input queue
``scheduler``     which tokens the next step computes; pure bookkeeping, no torch
``blocks``        who owns which block of the KV cache
``runner``        the chosen tokens -> tensors -> sampled tokens
``loop``          the main thread: input queue -> schedule -> forward -> output queue
``output_thread`` output queue -> frames
"""
