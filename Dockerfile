# The command xcit with everything that training needs:
#     docker build -t xcit_mm .
#     docker run --rm -v "$PWD:/work" xcit_mm train mask_rcnn_xcit_n12_16_shapes
# PyTorch's package brings CUDA's libraries, so the default base also runs on GPUs (docker run
# --gpus all). Any base with Debian's or Ubuntu's packages will do, such as
#     docker build --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 -t xcit_mm .
ARG BASE=python:3.12-slim
FROM ${BASE}
# The family of packages, and further extras, such as onedl,export,large.
ARG EXTRAS=onedl,eval,vis

# hadolint ignore=DL3008
RUN apt-get update \
    # rasterio's GDAL needs it.
    && apt-get install -y --no-install-recommends libexpat1 \
    && if ! python3 -m ensurepip --version > /dev/null 2>&1; then \
        apt-get install -y --no-install-recommends python3 python3-venv; \
    fi \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/xcit
ENV PATH=/opt/xcit/bin:$PATH PIP_NO_CACHE_DIR=1

COPY . /opt/xcit/source
RUN pip install -c /opt/xcit/source/constraints.txt "/opt/xcit/source[${EXTRAS}]" \
    # mmcv asks for the OpenCV with windows, which needs libGL.
    && pip install -c /opt/xcit/source/constraints.txt --force-reinstall --no-deps \
        opencv-python-headless \
    && rm -rf /opt/xcit/source \
    && xcit --version

WORKDIR /work
ENTRYPOINT ["xcit"]
