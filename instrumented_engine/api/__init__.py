"""The API process: HTTP in, HTTP out, and the API's end of the sockets.

``app``       routes in OpenAI's form
``protocol``  request and response bodies
``errors``    the one table of error classes
``timeline``  the stamps of one request, and the record they end in
``client``    the sockets to the core and the receiver thread
"""
