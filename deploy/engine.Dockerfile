# The engine: torch and Triton. Build from the repository's root:
#   docker build -f deploy/engine.Dockerfile -t loratorio-engine .
# The CUDA libraries come with torch's wheels, the driver from the host.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY adapters adapters
COPY engine engine
COPY gateway gateway
COPY kernels kernels
COPY migrations migrations
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir '.[engine,s3,otel]'

FROM python:3.11-slim
# Triton compiles its launchers when a kernel first runs, so the image keeps a C compiler; this base
# image carries Python's headers. Debian keeps one version of a package: a pinned one is gone with
# its next correction.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home loratorio \
    && install -d -o loratorio /data /data/adapters /data/engine /models /cache
COPY --from=build /opt/venv /opt/venv
# Nothing is written but in the volumes and /tmp: a read-only root will do.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    TRITON_CACHE_DIR=/cache/triton
USER 10001
VOLUME ["/data", "/models", "/cache"]
EXPOSE 7001 7002
ENTRYPOINT ["python", "-m", "engine"]
CMD ["serve", "--model", "/models/base", "--listen", "tcp:0.0.0.0:7001", \
     "--metrics-port", "7002", "--metrics-host", "0.0.0.0", \
     "--adapter-store", "/data/adapters", "--data-dir", "/data/engine"]
