PYTHON ?= python3
VENV := .venv
VENV_OPENMMLAB := .venv-openmmlab
REQUIREMENTS := setup.py constraints.txt
# Two processes with a thread each: most of the tests' time is starting tools, which one core does.
PYTEST = OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -n 2 --dist loadscope
DETECTOR := configs/mask_rcnn_xcit_n12_16_shapes.py

.PHONY: help train test test-openmmlab data docs lint format clean

help:
	@echo 'make train           install, draw the shapes dataset, train a Mask R-CNN, evaluate it'
	@echo 'make test            install, run the tests'
	@echo 'make test-openmmlab  the tests on the openmmlab packages, in an environment of their own'
	@echo 'make docs            install Sphinx, build the documentation in build/docs'
	@echo 'make lint, format    check, or mend, the style'
	@echo 'make clean           remove the environments and what was built'

train: data
	$(VENV)/bin/python tools/train.py $(DETECTOR)

data: $(VENV)/installed
	$(VENV)/bin/python tools/make_shapes.py data/shapes

test: $(VENV)/installed
	$(PYTEST)

test-openmmlab: $(VENV_OPENMMLAB)/installed
	$(PYTEST)

docs: $(VENV)/installed-docs
	$(VENV)/bin/python -m sphinx -E -W --keep-going -c docs . build/docs

lint: $(VENV)/installed
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/codespell

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

$(VENV)/installed: STACK := onedl
$(VENV_OPENMMLAB)/installed: STACK := openmmlab
# The stamp comes last: an installation that was cut off is made anew.
$(VENV)/installed $(VENV_OPENMMLAB)/installed: $(REQUIREMENTS)
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -c constraints.txt -e '.[$(STACK),test]'
	@# mmcv asks for the OpenCV with windows; where libGL is missing, the headless one replaces it.
	$(@D)/bin/python -c 'import cv2' 2>/dev/null || $(@D)/bin/python -m pip install -c constraints.txt \
		--force-reinstall --no-deps opencv-python-headless
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(VENV)/bin/python -m pip install -c constraints.txt -e '.[onedl,docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV_OPENMMLAB) build *.egg-info
