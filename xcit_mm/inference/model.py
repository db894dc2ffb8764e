"""A trained detector or segmentor that takes images and gives predictions."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from PIL import Image
from torch import nn

from ..device import choose_device
from ..engine.config.check import require_parts
from ..engine.config.errors import config_errors
from ..engine.config.load import load_config
from ..engine.model import build_model
from ..environment import quiet, require
from ..errors import UserError, reason
from ..weights.pretrained import require_file, weights_for
from ..weights.read import read_checkpoint
from ..weights.states import HEAD, require_same_tensors
from .classes import Colour, classes_and_palette
from .detections import Detections
from .label_maps import label_maps
from .maps import maps_freed_once_used
from .pipeline import test_pipeline
from .reading import to_rgb
from .segmentation import Segmentation

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation'}  # by the scope of the config

ImageLike = str | Path | np.ndarray | Image.Image


class Model:
    """A trained detector or segmentor, from :func:`load_model`.

    Attributes:
        task: 'detection' or 'segmentation'.
        classes: Their names.
        palette: A colour for each class.
        module: mmdet's or mmseg's model, in evaluation mode.
    """

    def __init__(
        self,
        module: nn.Module,
        task: str,
        classes: tuple[str, ...],
        palette: tuple[Colour, ...],
        pipeline: Compose,
    ) -> None:
        self.module, self.task = module, task
        self.classes, self.palette = classes, palette
        self._pipeline = pipeline

    def predict(self, image: ImageLike) -> Detections | Segmentation:
        """Find the objects of an image, or the class of each of its pixels.

        Args:
            image: A path or http(s) URL, an RGB array (H, W, 3) uint8, or PIL's.

        Raises:
            UserError: If it cannot be read.
        """
        return self.predict_batch([image])[0]

    @torch.inference_mode()
    def predict_batch(self, images: Sequence[ImageLike]) -> list[Detections | Segmentation]:
        """Predict several images.

        Those that are of one size when the model sees them go through it together. Others do not,
        because XCiT would attend to the padding: a prediction does not depend on what else is in
        the batch.

        Args:
            images: As of :meth:`predict`.

        Raises:
            UserError: If one cannot be read.
        """
        arrays = [to_rgb(image) for image in images]
        samples = [self._prepare(array) for array in arrays]
        by_size: dict[torch.Size, list[int]] = {}
        for i, sample in enumerate(samples):
            by_size.setdefault(sample['inputs'].shape, []).append(i)
        predictions: dict[int, Detections | Segmentation] = {}
        for indices in by_size.values():
            data = {
                key: [samples[i].pop(key) for i in indices] for key in ('inputs', 'data_samples')
            }
            predict = self._detect if self.task == 'detection' else self._segment
            with maps_freed_once_used(self.module):
                found = predict(data, [arrays[i] for i in indices])
            predictions.update(zip(indices, found, strict=True))
        return [predictions[i] for i in range(len(arrays))]

    def _prepare(self, image: np.ndarray) -> dict[str, Any]:
        # Not every transform that resizes sets scale_factor, and without any nobody does.
        given = dict(img=np.ascontiguousarray(image[..., ::-1]), img_path='', img_id=0)
        try:
            return self._pipeline({**given, 'scale_factor': (1.0, 1.0)})
        except cv2.error as error:
            height, width = image.shape[:2]
            raise UserError(
                f'an image of {width}x{height} pixels cannot be resized as the config says '
                f'({reason(error)}); its own size: --full-size'
            ) from None

    def _detect(self, data: dict[str, Any], images: Sequence[np.ndarray]) -> list[Detections]:
        results = self.module.test_step(data)
        if 'pred_instances' not in results[0]:
            raise UserError(
                f'a {type(self.module).__name__} gives no objects (pred_instances): name a '
                'detector with boxes, or a segmentor'
            )
        return [
            _detections(result.pred_instances, image, self.classes, self.palette)
            for result, image in zip(results, images, strict=True)
        ]

    def _segment(self, data: dict[str, Any], images: Sequence[np.ndarray]) -> list[Segmentation]:
        kind = np.uint8 if len(self.classes) <= 256 else np.int16
        return [
            Segmentation(image, labels.cpu().numpy().astype(kind), self.classes, self.palette)
            for labels, image in zip(label_maps(self.module, data), images, strict=True)
        ]


def load_model(
    config: str | Path,
    checkpoint: str | Path,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
    full_size: bool = False,
) -> Model:
    """Build the model of a config with the weights of a checkpoint, to predict with.

    Args:
        config: Path of a config file.
        checkpoint: File or URL of a released model, or of what a training of this config wrote.
        device: 'cpu', 'cuda', 'cuda:1'; None: the GPU if there is one, else the CPU.
        options: Dotted names and values that replace those of the config
            (see :func:`xcit_mm.engine.config.load.load_config`).
        trust_checkpoint: Read a checkpoint that holds more than weights, which runs whatever
            is in it.
        full_size: Let the model see images at their own size, instead of resized as the config
            says.

    Raises:
        UserError: If an input is wrong: the config, an option, the device, or a checkpoint that
            cannot be read or is of another model.
    """
    cfg = load_config(config, options)
    require_parts(cfg, 'test')
    place = choose_device(device)
    checkpoint = str(checkpoint)
    require_file(checkpoint)
    content = read_checkpoint(checkpoint, trusted=trust_checkpoint)
    module = build_model(cfg, 'cpu')
    _load_weights(module, content, checkpoint, cfg)
    require(f'{cfg.default_scope}.datasets')
    scope = DefaultScope.overwrite_default_scope(cfg.default_scope)
    with config_errors(cfg), scope, quiet():
        classes, palette = classes_and_palette(cfg, content, module)
        pipeline = test_pipeline(cfg, full_size)
    return Model(module.to(place), TASKS[cfg.default_scope], classes, palette, pipeline)


def _load_weights(module: nn.Module, content: Any, checkpoint: str, cfg: Config) -> None:
    state = weights_for(module, content, checkpoint)
    theirs, wanted = _kind(state), _kind(module.state_dict())
    if theirs != wanted:
        raise UserError(
            f'the checkpoint {checkpoint} is of a {theirs}, and {cfg.filename} of a {wanted}: name '
            'the config that it was trained with'
        )
    require_same_tensors(state, module.state_dict(), checkpoint)
    module.load_state_dict(state, strict=False)


def _kind(names: Iterable[str]) -> str:
    heads = {name.split('.')[0] for name in names if HEAD in name.split('.')[0]}
    if not heads:
        return 'backbone alone'
    return 'segmentor' if 'decode_head' in heads else 'detector'


def _detections(
    instances: Any, image: np.ndarray, classes: tuple[str, ...], palette: tuple[Colour, ...]
) -> Detections:
    order = instances.scores.argsort(descending=True, stable=True)
    instances = instances[order] if not _is_sorted(order) else instances
    boxes = getattr(instances.bboxes, 'tensor', instances.bboxes)
    masks = instances.masks.cpu().numpy() if 'masks' in instances else None
    return Detections(
        image,
        boxes.float().cpu().numpy(),
        instances.scores.float().cpu().numpy(),
        instances.labels.cpu().numpy(),
        masks,
        classes,
        palette,
    )


def _is_sorted(order: torch.Tensor) -> bool:
    """Then the masks, gigabytes for a large image, need not be copied."""
    return bool((order == torch.arange(len(order), device=order.device)).all())
