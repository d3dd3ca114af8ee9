# Debian's Prometheus and Alertmanager where the official images would be: same entry point, same owners of the data.
ARG BASE
FROM ${BASE} AS prometheus
RUN install --directory --owner=65534 --group=65534 /prometheus
ENTRYPOINT ["prometheus"]

FROM ${BASE} AS alertmanager
RUN install --directory --owner=65534 --group=65534 /alertmanager
ENTRYPOINT ["prometheus-alertmanager"]
