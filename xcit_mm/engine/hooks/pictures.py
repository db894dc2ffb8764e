"""Pictures of predictions beside the ground truth."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine import fileio
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor

from ...datasets.images import BadImageError, decode
from ...files import require_no_links
from . import order

FOLDER = 'pictures'  # in the work dir
NUM_VAL = 16  # pictures of a validation
SCORE_THR = 0.5  # detections with a lower score are not drawn
MIN_SIDE = 320  # pixels; labels hide the objects of a smaller picture


@HOOKS.register_module()
class PictureHook(Hook):
    """Draw ground truth (left) and prediction (right) over the images, as PNG files.

    One hook for detection and segmentation, where mmdet's and mmseg's differ in arguments,
    names and format. The first images of a validation go to ``<work_dir>/pictures``, where
    those of the next validation replace them.

    Args:
        test_dir: Where a test draws every image (a distributed one those of its first
            process); None: nowhere.
    """

    priority = order.PICTURES

    def __init__(self, test_dir: str | None = None) -> None:
        self.test_dir = test_dir

    def before_train(self, runner: Runner) -> None:
        if is_main_process():
            require_no_links(Path(runner.work_dir, FOLDER))

    def before_val_epoch(self, runner: Runner) -> None:
        self._left = NUM_VAL

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        for sample in outputs[: self._left]:
            self._draw(runner, sample, Path(runner.work_dir, FOLDER))
        self._left -= len(outputs[: self._left])

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence[BaseDataElement]
    ) -> None:
        if self.test_dir is not None:
            for sample in outputs:
                self._draw(runner, sample, Path(self.test_dir))

    def _draw(self, runner: Runner, sample: BaseDataElement, folder: Path) -> None:
        image = _image(sample)
        factor = -(-MIN_SIDE // min(image.shape[:2]))
        if factor > 1:
            image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
            sample = _enlarge(sample, factor)
        options = {'pred_score_thr': SCORE_THR} if 'pred_instances' in sample else {}
        runner.visualizer.add_datasample(
            'picture',
            image,
            sample,
            out_file=str(folder / f'{Path(sample.img_path).stem}.png'),
            **options,
        )


def _image(sample: BaseDataElement) -> np.ndarray:
    """The image as the model was given it: not the rotation of EXIF, if not; black, if bad."""
    height, width = sample.ori_shape
    try:
        return decode(fileio.get(sample.img_path), (width, height))[..., ::-1]
    except (BadImageError, OSError):
        return np.zeros((height, width, 3), np.uint8)


def _enlarge(sample: BaseDataElement, factor: int) -> BaseDataElement:
    """A copy of a data sample for its image enlarged by a whole number."""

    def repeat(x: Tensor) -> Tensor:
        return x.repeat_interleave(factor, dim=-2).repeat_interleave(factor, dim=-1)

    sample = sample.cpu()
    for name in {'gt_instances', 'pred_instances'} & set(sample.keys()):
        instances = sample.get(name)
        boxes = instances.bboxes
        instances.bboxes = getattr(boxes, 'tensor', boxes) * factor
        if 'masks' in instances:
            masks = instances.masks
            if not isinstance(masks, Tensor):  # mmdet's BitmapMasks, of the ground truth
                masks = masks.to_tensor(torch.bool, 'cpu')
            instances.masks = repeat(masks)
    for name in {'gt_sem_seg', 'pred_sem_seg'} & set(sample.keys()):
        sample.set_data({name: PixelData(data=repeat(sample.get(name).data))})
    return sample
