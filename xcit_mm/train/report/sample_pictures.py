"""Pictures of the ground truth (left) and the prediction (right) of samples, as PNG files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine import fileio
from mmengine.dist import is_main_process
from mmengine.runner.base_loop import BaseLoop
from mmengine.structures import BaseDataElement, PixelData
from PIL import Image

from ...base.colors import Color, class_colors
from ...data.transforms.decode import BadImageError, image_loader
from ...predict.results import SCORE_THR, Detections, Heights, Segmentation
from ...predict.results.drawing import draw_objects, topmost_masks
from ...predict.results.heights import limits_of
from ...predict.results.segmentation import INSTANCE_OFFSET

LEGEND_ROWS = 2


def draw_samples(loop: BaseLoop, samples: Sequence[BaseDataElement], folder: Path) -> None:
    """Draw the samples of a batch, in the first process only."""
    info = loop.dataloader.dataset.metainfo
    names = info['classes'], class_colors(info.get('palette'), len(info['classes']))
    loader = image_loader(loop.dataloader.dataset)
    for sample in samples if is_main_process() else ():
        if 'scene' in sample:  # a large image, which is read by windows
            from .scene_pictures import scene_pictures

            _save(scene_pictures(sample, *names, SCORE_THR), sample, folder)
            continue
        try:  # with the rotation of EXIF only if the model was given it
            path, size = sample.img_path, sample.ori_shape[::-1]
            image = loader.decode(fileio.get(path), size, Path(path))
        except (BadImageError, OSError):
            continue  # another loader of the config could read it
        image = loader.picture(image)
        if 'pred_panoptic_seg' in sample:
            segments = (_annotated_segments(sample), sample.pred_panoptic_seg)
            results = (
                Segmentation.from_panoptic(s, image, *names) for s in segments if s is not None
            )
            pictures = [result.draw(legend_rows=LEGEND_ROWS) for result in results]
        elif 'pred_depth_map' in sample:
            keys = ('gt_depth_map', 'pred_depth_map')
            maps = [sample.get(key).data[0].cpu().numpy() for key in keys if key in sample]
            limits = limits_of(*maps)  # the same colors in both pictures
            pictures = [Heights(image, values).draw(limits=limits) for values in maps]
        elif 'pred_label' in sample:
            pictures = _class_pictures(image, sample, *names)
        else:
            keys = ('gt_sem_seg', 'pred_sem_seg', 'gt_instances', 'pred_instances')
            pictures = [_picture(image, sample.get(key), *names) for key in keys if key in sample]
        _save(pictures, sample, folder)


def _save(pictures: Sequence[np.ndarray], sample: BaseDataElement, folder: Path) -> None:
    """Write pictures side by side, if there are any, into a file with the name of the image."""
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(sample.img_path)
        # Folders of classes may have files of equal names.
        name = f'{source.parent.name}_{source.stem}' if 'pred_label' in sample else source.stem
        path = folder / f'{name}.png'
        Image.fromarray(np.concatenate(pictures, axis=1)).save(path)


def _annotated_segments(sample: BaseDataElement) -> PixelData | None:
    """Number the annotated segments of an image as mmdet numbers the predicted ones."""
    if 'gt_sem_seg' not in sample:
        return None
    segments = sample.gt_sem_seg.sem_seg.clone()
    for number, mask in enumerate(sample.gt_instances.masks.to_ndarray().astype(bool), 1):
        segments[0, torch.from_numpy(mask)] += number * INSTANCE_OFFSET
    return PixelData(sem_seg=segments)


def _class_pictures(
    image: np.ndarray, sample: BaseDataElement, classes: Sequence[str], palette: Sequence[Color]
) -> list[np.ndarray]:
    """Name the annotated class and the predicted one, with its probability, at a frame."""
    label, predicted = sample.gt_label, sample.pred_label
    probability = float(sample.pred_scores[predicted])
    texts = (label, classes[label]), (predicted, f'{classes[predicted]} {probability:.2f}')
    frame = np.array([[0, 0, *image.shape[1::-1]]], np.float32)
    return [draw_objects(image, frame, None, [palette[n]], [text]) for n, text in texts]


def _picture(
    image: np.ndarray, data: BaseDataElement, classes: Sequence[str], palette: Sequence[Color]
) -> np.ndarray:
    if isinstance(data, PixelData):
        labels = data.data[0].cpu().numpy()
        return Segmentation(image, labels, classes, palette).draw(legend_rows=LEGEND_ROWS)
    if 'scores' in data:
        return Detections.from_instances(data, image, classes, palette).above(SCORE_THR).draw()
    boxes = getattr(data.bboxes, 'tensor', data.bboxes).cpu().numpy()
    masks = data.masks.to_ndarray().astype(bool) if 'masks' in data else None
    labels = data.labels.tolist()
    colors, texts = [palette[i] for i in labels], [classes[i] for i in labels]
    return draw_objects(image, boxes, topmost_masks(masks), colors, texts)
