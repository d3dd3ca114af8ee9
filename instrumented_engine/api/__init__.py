"""The API process: HTTP in, HTTP out, and the API's end of the sockets.

``app``        routes in OpenAI's form
``protocol``   request and response bodies
``errors``     the one table of error classes
``admission``  who is let in: the gate, the bounds, the adaptive limit (``limiter``)
``middleware`` around every completion: its timeline, and whether it is let in
``timeline``   the stamps of one request, and the record they end in
``generation`` one completion: ``choice`` by choice, ``reader`` from tokens to text
``client``     the sockets to the core; ``receiver`` is the thread that fills each request's ``stream``
``core_link``  what is known of the core process; ``health`` judges its progress
``tick``       what the event loop does ten times a second
``server``     uvicorn with a drain; ``listener`` and ``tls`` are its socket
"""
