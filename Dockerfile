# The pipeline in a container. The image runs on CPUs and on GPUs, because PyTorch's wheels contain CUDA's libraries. Give
# the container a GPU with --gpus all.
#   docker build -t jointspace .
#   docker run --rm -v "$PWD:/work" jointspace jointspace run holiday.yaml
#   docker build -t jointspace-serve --target serve .
#   docker run --rm -p 8000:8000 -v "$PWD:/work:ro" jointspace-serve /work/results/demo/index/sae
FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/jointspace
COPY requirements.lock ./
RUN pip install --requirement requirements.lock
COPY . .
RUN pip install --no-deps . && useradd --create-home --uid 1000 jointspace
USER 1000
WORKDIR /work

FROM base AS serve
EXPOSE 8000
ENTRYPOINT ["jointspace", "serve", "--host", "0.0.0.0"]

FROM base AS pipeline
CMD ["snakemake", "all", "--cores", "2", "--snakefile", "/opt/jointspace/Snakefile"]
