# Plimsoll for machines with NVIDIA GPUs:
#
#   docker build -t plimsoll .
#   docker run --rm --gpus all --ipc host -v "$PWD":/work plimsoll train config.toml --run-dir runs/first
#
# Ranks as processes: --entrypoint /opt/plimsoll/launch/mpirun, then -n 2 train config.toml --run-dir runs/processes.

FROM rust:1.90-bookworm AS build
WORKDIR /plimsoll
# Open MPI, libclang and the rest that building needs, before the sources, so that a change of these keeps them.
COPY launch/setup launch/setup
RUN ./launch/setup --mpi && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cargo build --release --locked --features mpi,parquet

# CUDA's libraries with NVRTC, cuBLAS, NCCL and cuDNN. The driver is the host's.
FROM nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates openmpi-bin openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s libnccl.so.2 /usr/lib/x86_64-linux-gnu/libnccl.so \
    && ldconfig
COPY --from=build /plimsoll/target/release/plimsoll /usr/local/bin/plimsoll
COPY --from=build /plimsoll/launch /opt/plimsoll/launch
COPY --from=build /plimsoll/LICENSE-APACHE /plimsoll/LICENSE-MIT /opt/plimsoll/
# launch/mpirun starts this program instead of building one; compiled kernels are kept where a volume may be mounted.
ENV PLIMSOLL=/usr/local/bin/plimsoll \
    PLIMSOLL_CACHE_DIR=/var/cache/plimsoll \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN mkdir -m 700 /var/cache/plimsoll && plimsoll --version
WORKDIR /work
ENTRYPOINT ["plimsoll"]
CMD ["--help"]
