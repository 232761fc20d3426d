# One image for everything: `serve` answers the network and runs jobs, `run RECIPE` does one job and ends, `worker` joins
# a Ray cluster, `chat MODEL` talks to a published model; every other word is a verb of `finery`.
#
#   docker build -t finery .                                      # CUDA
#   docker build -t finery:cpu --build-arg VARIANT=cpu .          # without it: gigabytes less
#   docker run --read-only --tmpfs /tmp --tmpfs /home/finery --gpus all -p 8080:8080 -v finery:/data -v finery-cache:/cache finery
#   docker run --read-only --tmpfs /tmp --tmpfs /home/finery --gpus all -v "$PWD":/work finery run configs/recipes/demo.yaml
#
# The last one writes runs and registry into $PWD as uid 10001, which must be let: mkdir -p -m 0777 runs registry
#
# The bases are NVIDIA's CUDA runtime and Debian; any Debian 12+ or Ubuntu 24.04+ will do, as what is missing is installed
# below. In a closed network the PIP_ arguments name where packages come from; pip reads them as it does from the environment.
ARG VARIANT=cuda
ARG CUDA_BASE=docker.io/nvidia/cuda:13.0.1-runtime-ubuntu24.04
ARG CPU_BASE=docker.io/library/debian:12-slim

FROM ${CUDA_BASE} AS base-cuda
FROM ${CPU_BASE} AS base-cpu

# --- what both stages below stand on: Python, certificates, an init
FROM base-${VARIANT} AS base
ARG DEBIAN_FRONTEND=noninteractive
# A certificate bundle that the base brings (closed networks have their own) outlives the package that would replace it.
RUN own=/etc/ssl/certs/ca-certificates.crt; [ ! -s "$own" ] || cp "$own" /tmp/own-certificates; \
    apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 tini \
    && { [ ! -s /tmp/own-certificates ] || cat /tmp/own-certificates >> "$own"; } && rm -f /tmp/own-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the base image brings a Python before 3.11: take Debian 12+ or Ubuntu 24.04+")'

# --- where pip works; nothing of it but /opt/finery goes on
FROM base AS build
ARG VARIANT
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
# Neither secrets nor hosts stay in the image: build arguments end with the build.
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG TORCH_INDEX
COPY constraints.txt /opt/source/
# torch first and alone: the largest layer changes only with its pin, and nothing else can pull a second build of it
RUN index="${TORCH_INDEX}"; \
    if [ -z "$index" ] && [ "$VARIANT" = cpu ] && [ -z "$PIP_INDEX_URL$PIP_FIND_LINKS" ]; then \
        index=https://download.pytorch.org/whl/cpu; fi; \
    python3 -m venv /opt/finery \
    && /opt/finery/bin/pip install --no-cache-dir ${index:+--index-url "$index"} "$(grep '^torch==' /opt/source/constraints.txt)"
COPY pyproject.toml README.md LICENSE /opt/source/
COPY configs /opt/source/configs
COPY pipelines /opt/source/pipelines
COPY service /opt/source/service
# Extras of the package; `ray` is what `worker` needs
ARG EXTRAS=[ray,structured]
RUN /opt/finery/bin/pip install --no-cache-dir --constraint /opt/source/constraints.txt "/opt/source${EXTRAS}"
# What the image consists of, as CycloneDX; the tool that writes it stays here, and pip goes.
RUN python3 -m venv /opt/sbom \
    && /opt/sbom/bin/pip install --no-cache-dir --no-compile --constraint /opt/source/constraints.txt cyclonedx-bom \
    && /opt/finery/bin/pip uninstall --yes pip setuptools \
    && mkdir -p /opt/finery/share/finery \
    && /opt/sbom/bin/cyclonedx-py environment --output-format JSON --output-reproducible \
        --output-file /opt/finery/share/finery/sbom.cdx.json /opt/finery/bin/python
COPY configs/deploy/entrypoint.sh /opt/finery/bin/entrypoint
RUN chmod 0755 /opt/finery/bin/entrypoint

# --- the image: no pip, no package lists, and no compiler unless COMPILER names one
FROM base AS finery
# What Triton builds a GPU's kernels with, and torch_compile asks for: --build-arg COMPILER="gcc libc6-dev python3-dev"
ARG COMPILER
ARG DEBIAN_FRONTEND=noninteractive
RUN [ -z "$COMPILER" ] || { apt-get update && apt-get install --yes --no-install-recommends $COMPILER && rm -rf /var/lib/apt/lists/*; }
COPY --from=build /opt/finery /opt/finery
# Jobs, their database and the shared stages lie in /data, what comes from the Hub in /cache: mount both. Beside them only
# /tmp and the home of the user are written, and /work by `run`: all else may be read-only.
RUN groupadd --gid 10001 finery && useradd --uid 10001 --gid 10001 --create-home finery \
    && install --directory --owner finery --group finery /data /cache /work
ENV PATH=/opt/finery/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/cache/huggingface \
    FINERY_HOME=/data/cache \
    RAY_AUTH_MODE=token
USER 10001:10001
WORKDIR /work
VOLUME ["/data", "/cache"]
EXPOSE 8080
# A run answers no port, so its container is healthy as long as nothing listens for what it should serve.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
    CMD ["python3", "-c", "import urllib.request as u; b'serve' not in open('/proc/1/cmdline', 'rb').read().split(b'\\0') or u.urlopen('http://127.0.0.1:8080/livez', timeout=4)"]
# tini takes over the children of what was killed, so that no process stays behind
ENTRYPOINT ["tini", "--", "entrypoint"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--home", "/data"]
