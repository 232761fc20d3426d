# One image for everything: `serve` answers the network and runs jobs, `run RECIPE` does one job and ends.
#
#   docker build -t finery .
#   docker run --gpus all -p 8080:8080 -v finery:/data finery                                   # the service
#   docker run --gpus all -v "$PWD":/work -w /work finery run configs/recipes/demo.yaml          # one recipe
#
# The base is NVIDIA's CUDA runtime; any Debian 12+ or Ubuntu 24.04+ will do, as what is missing is installed below:
#   docker build --build-arg BASE_IMAGE=debian:12-slim --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# In a closed network the PIP_ arguments name where packages come from; pip reads them as it does from the environment.
ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.1-runtime-ubuntu24.04
FROM ${BASE_IMAGE}

ARG DEBIAN_FRONTEND=noninteractive
# A certificate bundle that the base brings (closed networks have their own) outlives the package that would replace it.
RUN own=/etc/ssl/certs/ca-certificates.crt; [ ! -s "$own" ] || cp "$own" /tmp/own-certificates; \
    apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv tini \
    && { [ ! -s /tmp/own-certificates ] || cat /tmp/own-certificates >> "$own"; } && rm -f /tmp/own-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the base image brings a Python before 3.11: take Debian 12+ or Ubuntu 24.04+")'

# Neither secrets nor hosts stay in the image: build arguments end with the build.
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG TORCH_INDEX
COPY constraints.txt /opt/source/
# torch first and alone: the largest layer changes only with its pin, and nothing else can pull a second build of it
RUN python3 -m venv /opt/finery \
    && /opt/finery/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' /opt/source/constraints.txt)"
COPY pyproject.toml README.md LICENSE /opt/source/
COPY configs /opt/source/configs
COPY pipelines /opt/source/pipelines
COPY service /opt/source/service
# Extras of the package, such as --build-arg EXTRAS='[ray]' for the nodes of a Ray cluster
ARG EXTRAS
RUN /opt/finery/bin/pip install --no-cache-dir --constraint /opt/source/constraints.txt "/opt/source${EXTRAS}"

# Jobs, their database and the shared stages lie in /data, what comes from the Hub in /cache: mount both.
RUN useradd --uid 10001 --user-group --create-home finery \
    && install --directory --owner finery --group finery /data /cache /work
ENV PATH=/opt/finery/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface \
    FINERY_HOME=/data/cache
USER finery
WORKDIR /work
VOLUME ["/data", "/cache"]
EXPOSE 8080
# A run answers no port, so its container is healthy as long as nothing listens for what it should serve.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
    CMD ["python3", "-c", "import os, sys, urllib.request as u; b'serve' not in open('/proc/1/cmdline', 'rb').read().split(b'\\0') or u.urlopen('http://127.0.0.1:8080/livez', timeout=4)"]
# tini takes over the children of what was killed, so that no process stays behind
ENTRYPOINT ["tini", "--", "finery"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--home", "/data"]
