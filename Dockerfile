# docker build -t sift-onnx . && docker run --rm -v "$PWD:/models" sift-onnx transform in.onnx out.onnx --wide 0.9
# With torch, for training: docker build --build-arg EXTRAS=train,report -t sift-onnx:train .
# --build-arg PIP_EXTRA_INDEX_URL=... names an index of CPU builds, see docs/install.md.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
ARG EXTRAS=report
ARG PIP_EXTRA_INDEX_URL
COPY --from=build /src/constraints.txt /wheels/ /tmp/wheels/
RUN pip install --no-cache-dir -c /tmp/wheels/constraints.txt "$(ls /tmp/wheels/*.whl)[$EXTRAS]" && rm -r /tmp/wheels
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /models
ENTRYPOINT ["sift-onnx"]
CMD ["--help"]
