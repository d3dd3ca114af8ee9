"""The command people type: start the stack, break it on purpose, look at a request."""
