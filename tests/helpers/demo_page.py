"""A page with two models, served for a test."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights
from xcit_mm.demo import OfferedModels, served

# Everything is a circle, with a score of 0.95, and its mask fills its box.
CERTAIN = {'bbox_head.fc_cls': (4.0, 0, 0, 0), 'mask_head.conv_logits': (4.0, 4, 4)}
MAX_UPLOAD = 0.25  # MB
HOST = '127.0.0.1'


def make_models(folder: Path) -> dict[str, list[str]]:
    """A detector that is sure of everything, and a segmentor with random weights."""
    detector = save_random_weights(DETECTOR, folder / 'mask_rcnn.pth')
    checkpoint = torch.load(detector)
    for layer, biases in CERTAIN.items():
        checkpoint['state_dict'][f'roi_head.{layer}.weight'].zero_()
        checkpoint['state_dict'][f'roi_head.{layer}.bias'][:] = torch.tensor(biases)
    torch.save(checkpoint, detector)
    segmentor = save_random_weights(SEGMENTOR, folder / 'sem_fpn.pth')
    return {DETECTOR: [str(detector)], SEGMENTOR: [str(segmentor)]}


@contextmanager
def served_page(
    models: dict[str, list[str]], shapes_root: Path, any_checkpoint: bool = True
) -> Iterator[str]:
    """Serve a page with two examples within a ``with`` block; its address."""
    examples = sorted((shapes_root / 'coco/val2017').glob('*.jpg'))[:2]
    offered = OfferedModels(lambda: dict(models), any_checkpoint)
    with served(offered, HOST, free_port(), examples, MAX_UPLOAD) as address:
        yield address


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]
