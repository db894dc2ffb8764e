"""Pinned batches, with a stand-in for the memory that only a machine with a GPU can pin."""

import multiprocessing

import numpy as np
import pytest
import torch
from helpers.toy import ToyDataset, toy_loader
from mmdet.models import DetDataPreprocessor
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.structures import InstanceData, PixelData
from mmseg.models import SegDataPreProcessor
from torch import Tensor, nn

from xcit_mm.data.datasets.samples import BadSample
from xcit_mm.train.data.loader import LoadedBatch
from xcit_mm.train.data.pinned import copy_without_waiting


@pytest.fixture
def pins(monkeypatch):
    """The addresses of the memory that was pinned: copies, as PyTorch makes them."""
    addresses = set()

    def pin_memory(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        addresses.add(copy.data_ptr())
        return copy

    monkeypatch.setattr(Tensor, 'pin_memory', pin_memory)
    return addresses


def test_images_and_labels_are_pinned_and_keep_their_values(pins):
    masks = np.random.default_rng(0).integers(0, 2, (2, 8, 8), np.uint8)
    sample = DetDataSample(metainfo=dict(img_id=3))
    sample.gt_instances = InstanceData(
        bboxes=HorizontalBoxes(torch.rand(2, 4)),
        labels=torch.tensor([1, 2]),
        masks=BitmapMasks(masks, 8, 8),
        names=['a', 'b'],
    )
    sample.ignored_instances = InstanceData(masks=PolygonMasks([[np.arange(6.0)]], 8, 8))
    sample.gt_sem_seg = PixelData(sem_seg=torch.randint(9, (1, 8, 8)))
    boxes, labels = sample.gt_instances.bboxes.tensor, sample.gt_sem_seg.sem_seg
    image, bad = torch.rand(3, 8, 8), [BadSample('a.jpg', 'it is cut off')]

    loaded = LoadedBatch({'inputs': [image], 'data_samples': [sample]}, bad).pin_memory()
    assert loaded.bad == bad
    (seen,) = loaded.batch['data_samples']
    instances = seen.gt_instances
    pairs = [
        (loaded.batch['inputs'][0], image),
        (instances.bboxes.tensor, boxes),
        (instances.labels, torch.tensor([1, 2])),
        (torch.from_numpy(instances.masks.masks), torch.from_numpy(masks)),
        (seen.gt_sem_seg.sem_seg, labels),
    ]
    for now, before in pairs:
        assert now.data_ptr() in pins and torch.equal(now, before)
    assert instances.names == ['a', 'b'] and seen.img_id == 3
    assert len(seen.ignored_instances.masks) == 1


def test_preprocessors_of_both_packages_copy_without_waiting():
    model = nn.ModuleList([DetDataPreprocessor(), SegDataPreProcessor(size=(8, 8))])
    copy_without_waiting(model)
    copies = []

    class Recorded(Tensor):
        def to(self, *args, **kwargs):
            copies.append(kwargs['non_blocking'])
            return super().to(*args, **kwargs)

    image = torch.zeros(3, 8, 8, dtype=torch.uint8).as_subclass(Recorded)
    for preprocessor in model:
        preprocessor.cast_data({'inputs': [image]})
    assert copies == [True, True]


@pytest.fixture
def pinning_thread(monkeypatch, pins):
    """PyTorch's thread that pins batches, on a machine without an accelerator."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method('forkserver', force=True)
    device = torch.device('cuda')
    for name, value in (
        ('is_available', True),
        ('current_accelerator', device),
        ('current_device_index', 0),
        ('set_device_index', None),
    ):
        monkeypatch.setattr(torch.accelerator, name, lambda *_, value=value, **__: value)
    yield pins
    multiprocessing.set_start_method(before, force=True)


def test_a_thread_pins_the_batches_of_workers(pinning_thread):
    plain = [batch['inputs'] for batch in toy_loader(ToyDataset(), endless=False)]
    loader = toy_loader(ToyDataset(), 1, endless=False, pin_memory=True)
    batches = [batch['inputs'] for batch in loader]
    assert all(x.data_ptr() in pinning_thread for inputs in batches[-2:] for x in inputs)
    for inputs, expected in zip(batches, plain, strict=True):
        assert torch.equal(torch.stack(inputs), torch.stack(expected))
