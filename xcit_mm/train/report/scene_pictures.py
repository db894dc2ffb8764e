"""Reduced pictures of the ground truth and the prediction of a large image."""

from collections.abc import Sequence

import cv2
import numpy as np
from mmengine.structures import BaseDataElement, InstanceData

from ...base.colors import Color
from ...large.files.overview import overview
from ...large.tokens.workspace import Workspace
from ...predict.large.large_predictions import MAX_TEXTS, LargeDetections
from ...predict.results import Segmentation
from ...predict.results.drawing import draw_objects

SIDE = 1024  # pixels of the longer side
LEGEND_ROWS = 2


def scene_pictures(
    sample: BaseDataElement, classes: Sequence[str], palette: Sequence[Color], score_thr: float
) -> list[np.ndarray]:
    """Return pictures of the ground truth and the prediction that a streamed sample has."""
    image = sample.scene
    picture = overview(image.size, image.pixels, SIDE, image.max_rows)
    if image.bands is not None:
        picture = image.bands.picture(picture)
    reads = []
    if 'label_windows' in sample:
        reads.append(sample.label_windows.read)
    if 'pred_sem_seg' in sample:
        predicted = sample.pred_sem_seg.data[0].numpy()
        reads.append(lambda window: predicted[tuple(window)])
    pictures = []
    for read in reads:
        labels = overview(image.size, read, SIDE)
        drawn = Segmentation(picture, labels, classes, palette)
        pictures.append(drawn.draw(legend_rows=LEGEND_ROWS))
    if 'gt_instances' in sample:
        pictures.append(_annotated(picture, image.size, sample.gt_instances, classes, palette))
    if 'pred_instances' in sample:
        instances = sample.pred_instances
        objects = LargeDetections(
            image=picture,
            boxes=instances.bboxes.numpy(),
            scores=instances.scores.numpy(),
            labels=instances.labels.numpy(),
            masks=instances.get('masks'),
            classes=classes,
            palette=palette,
            size=image.size,
            georeference={},
            workspace=Workspace(),
        )
        pictures.append(objects.above(score_thr).draw())
    return pictures


def _annotated(
    picture: np.ndarray,
    size: tuple[int, int],
    objects: InstanceData,
    classes: Sequence[str],
    palette: Sequence[Color],
) -> np.ndarray:
    """Draw annotated objects, whose masks are polygons."""
    reduction, topmost = picture.shape[1] / size[1], None
    if 'masks' in objects:
        topmost = np.zeros(picture.shape[:2], np.uint16)
        numbered = list(enumerate(objects.masks.masks[: np.iinfo(np.uint16).max], 1))
        for number, polygons in reversed(numbered):
            corners = [np.round(p.reshape(-1, 2) * reduction).astype(np.int32) for p in polygons]
            cv2.fillPoly(topmost, corners, number)
    labels = objects.labels.tolist()
    texts = [classes[i] if len(labels) <= MAX_TEXTS else '' for i in labels]
    boxes = objects.bboxes.numpy() * reduction
    return draw_objects(picture, boxes, topmost, [palette[i] for i in labels], texts)
