"""Random images with all annotations that the models of mmdet and mmseg need."""

from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.structures import PixelData

from helpers.zoo.configs import values

NUM_IMAGES = 2  # BatchNorm needs two where a map has a single pixel
NUM_OBJECTS = 3
NUM_CLASSES = 2
LANE_IMAGE = (320, 800)  # the height and width that CLRNet is made for


def images(model: ConfigDict, size: int, training: bool) -> dict[str, Any]:
    """Return a batch for the data preprocessor of a detector, tracker or segmentor.

    The images have ``size`` pixels a side. Some trackers take videos only to predict, not for the
    loss, which ``training`` is for.
    """
    data_preprocessor = model.get('data_preprocessor') or ConfigDict(type='')
    kind = data_preprocessor.type
    if kind == 'SegDataPreProcessor':
        return _label_maps(size)
    if kind == 'LineDetDataProcessor':
        return _lanes()
    labels = torch.arange(NUM_OBJECTS) % min([NUM_CLASSES, *values(model, 'num_classes')])
    if kind == 'TrackDataPreprocessor' and not (
        training and data_preprocessor.get('use_det_processor')
    ):
        return _video(size)
    stride = 8 if 'semantic_head' in model.get('roi_head', ()) else 1
    with_mask = 'mask' in str(model).lower()  # RTMDet's box head cannot handle masks
    data = _boxes(
        size, labels, stride, has_no_proposals='rpn_head' not in model, with_mask=with_mask
    )
    if kind == 'MultiBranchDataPreprocessor' and training:
        branches = ('sup', 'unsup_teacher', 'unsup_student')
        return {name: dict.fromkeys(branches, value) for name, value in data.items()}
    return data


def _boxes(
    size: int, labels: torch.Tensor, stride: int, has_no_proposals: bool, with_mask: bool
) -> dict[str, Any]:
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals

    shape = (3, size, size)
    data = demo_mm_inputs(
        NUM_IMAGES,
        shape,
        num_items=[NUM_OBJECTS] * NUM_IMAGES,
        num_classes=NUM_CLASSES,
        sem_seg_output_strides=stride,
        with_mask=with_mask,
        with_semantic=True,
    )
    proposals = demo_mm_proposals([shape] * NUM_IMAGES, num_proposals=50)
    for sample, boxes in zip(data['data_samples'], proposals, strict=True):
        sample.gt_instances.labels = labels
        if has_no_proposals:
            sample.proposals = boxes
        sample.set_metainfo(dict(homography_matrix=np.eye(3, dtype=np.float32)))
    return data


def _video(size: int) -> dict[str, Any]:
    from mmdet.testing import demo_track_inputs

    shape = (3, size, size)
    return demo_track_inputs(
        1, 2, key_frames_inds=[0], image_shapes=shape, num_items=[NUM_OBJECTS], with_mask=True
    )


def _lanes() -> dict[str, Any]:
    from mmdet.structures import DetDataSample

    height, width = LANE_IMAGE
    samples = []
    for _ in range(NUM_IMAGES):
        sample = DetDataSample(metainfo=dict(img_shape=LANE_IMAGE))
        sample.org_height, sample.org_width = LANE_IMAGE
        # Two scores, the start (y, x), the angle, the length, and an x for each of 72 heights.
        sample.lines_array = np.array([[0, 1, 0, 0.5, 0.5, 36, *[width / 2] * 72]], np.float32)
        sample.gt_sem_seg = PixelData(sem_seg=torch.randint(NUM_CLASSES, (1, height, width)))
        samples.append(sample)
    return dict(
        inputs=list(torch.randint(256, (NUM_IMAGES, 3, height, width))), data_samples=samples
    )


def _label_maps(size: int) -> dict[str, Any]:
    from mmseg.structures import SegDataSample

    shape = (size, size)
    samples = []
    for _ in range(NUM_IMAGES):
        maps = {
            f'gt_{name}': PixelData(data=torch.randint(NUM_CLASSES, (1, *shape)))
            for name in ('sem_seg', 'edge_map', 'depth_map')
        }
        meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, flip=False)
        samples.append(SegDataSample(metainfo=meta, **maps))
    return dict(inputs=list(torch.randint(256, (NUM_IMAGES, 3, *shape))), data_samples=samples)
