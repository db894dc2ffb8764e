"""Folders of images without labels, or of classes: what is listed, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.data.datasets.samples import SampleRequest, TrainingSamples

SIZE = dict(global_size=24, local_size=16, num_local=2)
PIPELINE = [dict(type='LoadImage'), dict(type='MultiCrop', **SIZE), dict(type='PackImage')]


@pytest.fixture(autouse=True)
def registered() -> None:
    environment.require_framework('mmengine')


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def unlabeled(folder: Path, **values):
    config = dict(type='UnlabeledImages', data_prefix=dict(img=str(folder)))
    return DATASETS.build(config | values)


def listed(dataset) -> list[str]:
    folder = dataset.data_prefix['img']
    files = (dataset.get_data_info(i)['img_path'] for i in range(len(dataset)))
    return [str(Path(file).relative_to(folder)) for file in files]


def test_all_images_below_a_folder_are_listed_in_order(tmp_path):
    fill(tmp_path, 'b.JPG', 'a.png', 'notes.txt', 'deep/er/c.tif', 'deep/a.png', 'd.npy')
    assert listed(unlabeled(tmp_path)) == ['a.png', 'b.JPG', 'deep/a.png', 'deep/er/c.tif']
    assert listed(unlabeled(tmp_path, suffixes=['.npy'])) == ['d.npy']


def test_folders_of_classes_are_images_without_labels(tmp_path, monkeypatch):
    fill(
        tmp_path, *(f'{name}/{i}.png' for name in ('with_mask', 'without_mask', 'x') for i in '12')
    )
    logged = []
    monkeypatch.setattr(
        'xcit_mm.data.datasets.image_folders.print_log', lambda *line: logged.append(line)
    )
    assert len(unlabeled(tmp_path)) == 6
    sentence = f'{tmp_path}: 6 images in 3 folders, whose names are ignored'
    assert logged == [(sentence, 'current')]
    assert len(unlabeled(tmp_path / 'x')) == 2 and len(logged) == 1
    classes = DATASETS.build(dict(type='ClassFolders', data_prefix=dict(img=str(tmp_path))))
    assert [classes.get_data_info(i)['gt_label'] for i in range(6)] == [0, 0, 1, 1, 2, 2]


def test_a_sample_has_the_crops_of_its_image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    for name in ('a.png', 'b.png'):
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / 'c.png').write_bytes(b'no image')
    samples = TrainingSamples(unlabeled(tmp_path, pipeline=PIPELINE))
    sample, bad = samples[SampleRequest(0, (0, 0, 0, 0))]
    assert [crops.shape for crops in sample['inputs']] == [(2, 3, 24, 24), (2, 3, 16, 16)]
    assert sample['data_samples'].img_path == str(tmp_path / 'a.png') and not bad
    assert 'gt_label' not in sample['data_samples']
    again, _ = samples[SampleRequest(0, (0, 0, 0, 0))]
    assert all(a.equal(b) for a, b in zip(sample['inputs'], again['inputs'], strict=True))
    other, _ = samples[SampleRequest(0, (0, 0, 1, 0))]
    assert not sample['inputs'][0].equal(other['inputs'][0])
    _, bad = samples[SampleRequest(2, (0, 0, 0, 0))]
    assert [problem.file for problem in bad] == [str(tmp_path / 'c.png')] * len(bad) and bad


def test_classes_without_images_or_folders_are_refused(tmp_path):
    def classes(**values):
        return DATASETS.build(
            dict(type='ClassFolders', data_prefix=dict(img=str(tmp_path))) | values
        )

    fill(tmp_path, 'cat/1.png', '.hidden/1.png')
    assert classes().metainfo['classes'] == ('cat',)
    with pytest.raises(UserError, match=r'its folders are the classes \(d'):
        classes(metainfo=dict(classes=('dog',)))
    with pytest.raises(UserError, match=r'has no image \(\.png\): write the folder of your images'):
        unlabeled(fill(tmp_path / 'texts', 'notes.txt'), suffixes=['.png'])
    (tmp_path / 'texts').rename(tmp_path / 'dog')
    with pytest.raises(UserError, match=r'dog has no image \(.*\): add images of the class, or'):
        classes()


def test_a_validation_may_lack_a_class(tmp_path):
    fill(tmp_path, 'b/1.png')
    arguments = dict(data_prefix=dict(img=str(tmp_path)), metainfo=dict(classes=('a', 'b')))
    (sample,) = DATASETS.build(dict(type='ClassFolders', **arguments)).load_data_list()
    assert sample['gt_label'] == 1
