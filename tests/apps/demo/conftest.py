from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights

from xcit_mm.apps.demo import OfferedModels, served

# Everything is a circle, with a score of 0.95, and its mask fills its box.
CERTAIN = {'bbox_head.fc_cls': (4.0, 0, 0, 0), 'mask_head.conv_logits': (4.0, 4, 4)}
MAX_UPLOAD = 0.25  # MB


@pytest.fixture(scope='session')
def models(tmp_path_factory) -> dict[str, list[str]]:
    """A detector that is sure of everything, and a segmentor with random weights."""
    folder = tmp_path_factory.mktemp('models')
    detector = save_random_weights(DETECTOR, folder / 'mask_rcnn.pth')
    checkpoint = torch.load(detector)
    for layer, biases in CERTAIN.items():
        checkpoint['state_dict'][f'roi_head.{layer}.weight'].zero_()
        checkpoint['state_dict'][f'roi_head.{layer}.bias'][:] = torch.tensor(biases)
    torch.save(checkpoint, detector)
    segmentor = save_random_weights(SEGMENTOR, folder / 'sem_fpn.pth')
    return {DETECTOR: [str(detector)], SEGMENTOR: [str(segmentor)]}


@pytest.fixture(scope='session')
def serve_page(models, shapes_root, free_port) -> Callable:
    """Serve a page with two examples within a ``with`` block; its address."""
    examples = sorted((shapes_root / 'coco/val2017').glob('*.jpg'))[:2]
    offered = OfferedModels(lambda: dict(models), any_checkpoint=True)
    return lambda: served(offered, '127.0.0.1', free_port(), examples, MAX_UPLOAD)


@pytest.fixture(scope='session')
def address(serve_page) -> Iterator[str]:
    with serve_page() as address:
        yield address


@pytest.fixture(scope='session')
def picture(shapes_root) -> Path:
    """Not an example, whose file the page would keep."""
    return max((shapes_root / 'coco/val2017').glob('*.jpg'))
