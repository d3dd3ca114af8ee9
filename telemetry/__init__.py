"""The contract between the engine, the span exporter and the sidecar.

``stages``         the six stages of a request, their stamps, span and attribute names
``layout``         which slots and histograms the page of each process has
``scoreboard``     the shared-memory page: Writer and Reader
``records``        the 256-byte records in a page's ring
``span_exporter``  own process: records become OpenTelemetry spans
``catalog``        every Prometheus metric
``settings``       flags and environment variables, the same way for every process
"""
