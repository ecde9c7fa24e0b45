# The gateway: CPU only, no torch. Build from the repository's root:
#   docker build -f deploy/gateway.Dockerfile -t loratorio-gateway .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY adapters adapters
COPY engine engine
COPY gateway gateway
COPY kernels kernels
COPY migrations migrations
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir '.[gateway,s3,otel]'

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home loratorio && install -d -o loratorio /data /data/adapters
COPY --from=build /opt/venv /opt/venv
# Nothing is written but in the volume and /tmp: a read-only root will do.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
VOLUME /data
EXPOSE 8000 8001
ENTRYPOINT ["python", "-m", "gateway"]
CMD ["serve", "--settings", "/etc/loratorio/gateway.json"]
