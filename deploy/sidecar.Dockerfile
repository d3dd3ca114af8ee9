# The sidecar, and from the same image the page receiver, the load generator and the `enginescope` command. No torch,
# no web framework. From the root of a checkout:
#
#   docker build --file deploy/sidecar.Dockerfile --tag enginescope/sidecar .
#
# For a build without a package index see engine.Dockerfile.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/src/constraints.txt
RUN python3 -m venv /opt/enginescope
COPY deploy/requirements.py pyproject.toml /build/
RUN --mount=type=bind,target=/src \
    python3 /build/requirements.py >/build/requirements.txt \
    && /opt/enginescope/bin/pip install --requirement /build/requirements.txt
# pip is of no use in the finished image, and one thing less to keep up to date.
RUN --mount=type=bind,target=/src,rw /opt/enginescope/bin/pip install --no-deps /src \
    && /opt/enginescope/bin/pip uninstall --yes pip setuptools

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="enginescope sidecar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/enginescope /opt/enginescope
ENV PATH=/opt/enginescope/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
EXPOSE 9177
ENTRYPOINT ["python", "-m", "sidecar"]
