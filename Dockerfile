# SPDX-License-Identifier: Apache-2.0
# The server image. CPU (default):
#   docker build -t deeppcr-serve .
# CUDA: bases that carry Debian 12's packages and, for building, a CUDA toolkit in /usr/local/cuda:
#   docker build -t deeppcr-serve:cuda --build-arg CUDA=on \
#     --build-arg BUILD_BASE=<with toolkit> --build-arg BASE=<with CUDA runtime and cuBLAS> .
# The image holds no models: mount a model repository at /models.
# The bases are those of 2026-08-03, for each platform (deploy/README.md, "Images by digest").
ARG BUILD_BASE=debian:12@sha256:813017f3d62be4b5891a7acca6a01bdcd4b8513daa81b1ab99d3a50385b26931
ARG BASE=debian:12-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241

FROM ${BUILD_BASE} AS build
ARG CUDA=off
WORKDIR /src
# Packages first: this layer changes only with the list.
COPY deploy/install.sh deploy/lib.sh deploy/
RUN deploy/install.sh build
COPY CMakeLists.txt CMakePresets.json ./
COPY kernels kernels
COPY proto proto
COPY server server
COPY client client
COPY tests/bench/results tests/bench/results
COPY deploy/build.sh deploy/runtime_packages.sh deploy/
RUN deploy/build.sh --preset release --cuda "${CUDA}" --prefix /opt/deeppcr \
    && mkdir -p /opt/deeppcr/lib
# The packages that own the libraries the installed files link, whatever this base calls them.
RUN deploy/runtime_packages.sh /opt/deeppcr/bin/* > /opt/deeppcr/runtime_packages.txt

FROM ${BASE} AS runtime
COPY --from=build /opt/deeppcr/runtime_packages.txt /tmp/runtime_packages.txt
# What Debian has mended since the base was made comes with the packages.
RUN apt-get update -q \
    && apt-get upgrade -y -q \
    && xargs -a /tmp/runtime_packages.txt \
         apt-get install -y -q --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* /tmp/runtime_packages.txt \
    && groupadd --system --gid 10001 deeppcr \
    && useradd --system --uid 10001 --gid deeppcr --home-dir /nonexistent --shell /usr/sbin/nologin deeppcr \
    && install -d -o deeppcr -g deeppcr /var/cache/deeppcr
COPY --from=build /opt/deeppcr/bin /usr/local/bin
COPY --from=build /opt/deeppcr/lib /usr/local/lib
COPY deploy/sbom.sh deploy/lib.sh /tmp/deploy/
RUN mkdir -p /usr/local/share/deeppcr \
    && /tmp/deploy/sbom.sh /usr/local/bin/deeppcr-server > /usr/local/share/deeppcr/sbom.spdx \
    && rm -r /tmp/deploy
USER 10001:10001
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
# Loading measures a plan for every model that brings none before the server is ready.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["/usr/local/bin/deeppcr-server", "--probe=http://127.0.0.1:8002"]
ENTRYPOINT ["/usr/local/bin/deeppcr-server"]
CMD ["--model_repository=/models", "--listen=0.0.0.0:8001", "--http_listen=0.0.0.0:8002", "--plan_cache_dir=/var/cache/deeppcr", "--drain_pause_seconds=2"]
