PYTHON ?= python3
VENV := .venv
VENV_OPENMMLAB := .venv-openmmlab
REQUIREMENTS := setup.py constraints.txt
# CONSTRAINTS= installs the newest release of each package.
CONSTRAINTS := -c constraints.txt
# Two processes with a thread each.
PYTEST = OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder
# What depends on the family of packages, configs, weights, heads, and train, test and resume of each
# task, and on the releases of OpenCV, NumPy and Pillow, reading images and annotations.
BOTH_FAMILIES := tests/config tests/data/test_annotations.py tests/data/test_decode.py \
	tests/data/test_multiband.py tests/data/test_panoptic.py tests/data/test_shapes.py \
	tests/train/test_configs.py tests/train/test_resume.py tests/train/test_height_runs.py \
	tests/train/test_window_training.py tests/train/test_streamed_training.py \
	tests/train/test_parameter_groups.py tests/predict/fusion tests/large/test_detection.py \
	tests/large/test_segmentation.py tests/large/test_streamed_losses.py \
	tests/large/test_streamed_detector_losses.py tests/mmcv_ops tests/network/weights \
	tests/network/heads tests/project/test_environment.py tests/project/test_tools.py
DETECTOR := configs/mask_rcnn_xcit_n12_16_shapes.py

.PHONY: help train test test-all test-openmmlab data docs lint format clean

help:
	@echo 'make train           install, draw the shapes dataset, train a Mask R-CNN, evaluate it'
	@echo 'make test            install, run all tests that are not marked slow'
	@echo 'make test-all        all tests'
	@echo 'make test-openmmlab  part of the tests on the openmmlab packages, in their own environment'
	@echo 'make docs            install Sphinx, build the documentation in build/docs'
	@echo 'make lint, format    check, or fix, the style'
	@echo 'make clean           remove the environments and what was built'

train: data
	$(VENV)/bin/python tools/train.py $(DETECTOR)

data: $(VENV)/installed
	$(VENV)/bin/python tools/make_shapes.py data/shapes

test: $(VENV)/installed-tests
	$(PYTEST)

test-all: $(VENV)/installed-tests
	$(PYTEST) -m 'not gpu and not zoo'

docs: $(VENV)/installed-docs
	$(VENV)/bin/python -m sphinx -j auto -E -W --keep-going -c docs . build/docs

test-openmmlab: $(VENV_OPENMMLAB)/installed-tests
	$(PYTEST) $(BOTH_FAMILIES)

lint: $(VENV)/installed-tests
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/codespell

format: $(VENV)/installed-tests
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

$(VENV)/%: FAMILY := onedl
$(VENV)/%: TESTS := dev
$(VENV_OPENMMLAB)/%: FAMILY := openmmlab
$(VENV_OPENMMLAB)/%: TESTS := test
# The stamps come last: an installation that was interrupted starts again.
$(VENV)/installed $(VENV_OPENMMLAB)/installed: $(REQUIREMENTS)
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(CONSTRAINTS) -e '.[$(FAMILY)]'
	@# mmcv asks for the OpenCV with windows; where libGL is missing, the headless one replaces it.
	$(@D)/bin/python -c 'import cv2' 2>/dev/null || $(@D)/bin/python -m pip install $(CONSTRAINTS) \
		--force-reinstall --no-deps opencv-python-headless
	touch $@

$(VENV)/installed-tests $(VENV_OPENMMLAB)/installed-tests: %-tests: %
	$(@D)/bin/python -m pip install $(CONSTRAINTS) -e '.[$(FAMILY),$(TESTS)]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(VENV)/bin/python -m pip install $(CONSTRAINTS) -e '.[$(FAMILY),docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV_OPENMMLAB) build *.egg-info
