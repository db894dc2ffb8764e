"""Folders of images of any suffix with their labels, and what a run says of other images."""

from pathlib import Path
from unicodedata import normalize

import pytest
from mmengine.registry import DATASETS
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base import environment


@pytest.fixture
def root(tmp_path) -> Path:
    environment.require_framework('mmseg')
    for folder in ('images/cam', 'labels/cam', 'images/.ipynb_checkpoints'):
        (tmp_path / folder).mkdir(parents=True)
    for name in ('a.jpg', 'b.JPEG', 'cam/c.png', '.ipynb_checkpoints/a-checkpoint.jpg', 'é.webp'):
        Image.new('RGB', (8, 8)).save(tmp_path / 'images' / normalize('NFC', name))
    for name in ('a', 'b', 'cam/c', normalize('NFD', 'é'), 'gone'):
        Image.new('L', (8, 8)).save(tmp_path / f'labels/{name}.png')
    return tmp_path


def config(root: Path, kind: str, **more: object) -> dict:
    prefix = dict(img_path='images', seg_map_path='labels')
    common = dict(data_root=str(root), data_prefix=prefix, metainfo=dict(classes=('x', 'y')))
    return dict(type=kind, pipeline=[], **common, **more)


def samples(root: Path, **more: object) -> list[tuple[str, str]]:
    dataset = DATASETS.build(dict(config(root, 'SegmentationFolders', **more), _scope_='mmseg'))
    found = map(dataset.get_data_info, range(len(dataset)))
    return [
        (str(Path(s['img_path']).relative_to(root)), str(Path(s['seg_map_path']).relative_to(root)))
        for s in found
    ]


def test_images_of_all_suffixes_are_read_with_their_labels(root):
    found = samples(root)
    assert [image for image, _ in found] == [
        f'images/{name}' for name in ('a.jpg', 'b.JPEG', 'cam/c.png', 'é.webp')
    ]
    assert all((root / label).is_file() for _, label in found)
    dataset = DATASETS.build(dict(config(root, 'SegmentationFolders'), _scope_='mmseg'))
    assert 'Hidden files and folders' in dataset.remark and dataset.remark.endswith('gone.png: 1')
    assert len(samples(root, img_suffix='.jpg')) == 1
    (root / 'list.txt').write_text('b\ncam/c\n')
    assert [image for image, _ in samples(root, ann_file='list.txt')] == [
        'images/b.JPEG',
        'images/cam/c.png',
    ]
    Image.new('RGB', (8, 8)).save(root / 'images/a.bmp')
    with pytest.raises(UserError, match=r'a\.bmp and .*a\.jpg would have the same labels'):
        samples(root)
