"""Small datasets in formats other than COCO's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.annotated import SIZE
from helpers.in_process import call_tool
from helpers.other_layouts import voc_object, write_xml, write_yaml
from PIL import Image


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two images; the second one is held out for validation."""
    (tmp_path / 'images').mkdir()
    for name in 'ab':
        Image.new('RGB', SIZE).save(tmp_path / f'images/{name}.png')
    return tmp_path


@pytest.fixture
def yolo(tmp_path) -> Path:
    """Four images of 40x30 pixels with a pear each, in two splits."""
    root = tmp_path / 'fruit'
    for split in ('train', 'val'):
        for folder in ('images', 'labels'):
            (root / folder / split).mkdir(parents=True)
        for name in 'ab':
            Image.new('RGB', (40, 30)).save(root / f'images/{split}/{name}.png')
            (root / f'labels/{split}/{name}.txt').write_text('1 0.5 0.5 0.5 0.5\n')
    write_yaml(root, "{0: 'red apple', 1: pear}")
    return root


@pytest.fixture
def voc(tmp_path) -> Path:
    """Two images of 40x30 pixels with a pear each, without lists."""
    root = tmp_path / 'VOC'
    for folder in ('Annotations', 'JPEGImages'):
        (root / folder).mkdir(parents=True)
    for name in 'ab':
        Image.new('RGB', (40, 30)).save(root / f'JPEGImages/{name}.png')
        write_xml(root, name, 40, 30, voc_object('pear', [10, 5, 20, 15]))
    return root


@pytest.fixture
def prepare(monkeypatch, capfd, tmp_path) -> Callable:
    """Call the tool, which writes to tmp_path/out."""

    def prepare(source: Path, *options: object) -> tuple[int, str, str]:
        layout = 'voc' if source.name == 'VOC' else 'yolo'
        arguments = (layout, source, '--root', tmp_path / 'out', '--start', 'scratch', *options)
        return call_tool(monkeypatch, capfd, 'prepare_data.py', *arguments)

    return prepare
