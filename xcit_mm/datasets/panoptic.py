"""COCO's panoptic annotations without the package panopticapi, which is not on PyPI. Needs mmdet.

A PNG file holds the segment id of each pixel, and a JSON file the category of each segment. Things
are objects that can be counted; stuff is the rest. A pixel without a segment has the id 0.
"""

from typing import Any

import numpy as np
from mmdet.datasets import CocoPanopticDataset
from mmdet.datasets.api_wrappers import COCOPanoptic
from mmdet.datasets.transforms import LoadPanopticAnnotations
from mmdet.registry import DATASETS, TRANSFORMS
from mmdet.structures.mask import BitmapMasks
from mmengine import fileio

from ..errors import UserError
from . import annotations as problems
from .coco import indexed, log_remark, require_classes
from .images import BadImageError, opened

IGNORED = 255  # mmdet's label of a pixel of no segment
WITHOUT_SEGMENT = 'its label file lacks a segment of the annotation file'


def segment_ids(path: str, backend_args: dict | None = None) -> np.ndarray:
    """Read the PNG of an image: (H, W) int32, the id red + 256 green + 65536 blue."""
    with opened(fileio.get(path, backend_args=backend_args)) as image:
        return np.asarray(image.convert('RGB')) @ np.array((1, 2**8, 2**16), np.int32)


@DATASETS.register_module()
class CheckedPanopticDataset(CocoPanopticDataset):
    """mmdet's CocoPanopticDataset, but it refuses annotations that mmdet would misread.

    The arguments are those of ``CocoPanopticDataset``. The heads of mmdet number the things first.

    Raises:
        UserError: If the annotation file is invalid, has different classes, things or stuff, or if
            no image is left.
    """

    remark: str  # as of a CheckedCocoDataset

    def COCOAPI(self, path: str) -> COCOPanoptic:  # noqa: N802  mmdet calls it to read the file
        content, self.remark = problems.read_panoptic_annotations(path)
        categories = content['categories']
        require_classes(self, categories)
        things = [category['name'] for category in categories if category['isthing']]
        if things != list(self.metainfo['thing_classes']) or things != [
            category['name'] for category in categories[: len(things)]
        ]:
            raise UserError(
                f'{self.ann_file} has the things ({", ".join(things)}), but the config has '
                f'({", ".join(self.metainfo["thing_classes"])}): set thing_classes and '
                "stuff_classes of metainfo to the file's, and list the things first in both"
            )
        annotations = content.get('annotations', ())
        self._png_names = {entry['image_id']: entry['file_name'] for entry in annotations}
        return indexed(COCOPanoptic(), content)

    def full_init(self) -> None:
        if not self._fully_initialized:
            super().full_init()
            log_remark(self)

    def parse_data_info(self, raw_data_info: dict) -> dict:
        info = super().parse_data_info(raw_data_info)
        name = self._png_names.get(info['img_id'])
        if info['seg_map_path'] is not None and name is not None:
            # mmdet takes the name of the image, with .png.
            info['seg_map_path'] = fileio.join_path(self.data_prefix['seg'], name)
        return info

    def filter_data(self) -> list[dict]:
        kept = super().filter_data()
        if not kept:
            raise UserError(
                f'{self.ann_file}: none of its {len(self.data_list)} images is left: they have no '
                'things, or are smaller than filter_cfg.min_size'
            )
        return kept


@TRANSFORMS.register_module()
class LoadPanoptic(LoadPanopticAnnotations):
    """mmdet's LoadPanopticAnnotations, but it refuses a PNG without an annotated segment.

    Args:
        **kwargs: Arguments of mmdet's ``LoadAnnotations``.

    Raises:
        BadImageError: If the PNG lacks a segment, for example because it holds class numbers.
    """

    def __init__(self, with_mask: bool = True, with_seg: bool = True, **kwargs: Any) -> None:
        # Not the constructor of LoadPanopticAnnotations, which imports panopticapi.
        super(LoadPanopticAnnotations, self).__init__(
            with_mask=with_mask, with_seg=with_seg, **kwargs
        )

    def _load_masks_and_semantic_segs(self, results: dict) -> None:
        if results.get('seg_map_path') is None:  # of an image to predict, as in mmdet
            return
        ids = segment_ids(results['seg_map_path'], self.backend_args)
        labels, masks = np.full(ids.shape, IGNORED, np.int32), []
        for segment in results['segments_info']:
            mask = ids == segment['id']
            if not mask.any():
                raise BadImageError(WITHOUT_SEGMENT, f'{results["seg_map_path"]}, {segment["id"]}')
            labels[mask] = segment['category']
            if segment['is_thing']:
                masks.append(mask.astype(np.uint8))
        if self.with_mask:
            results['gt_masks'] = BitmapMasks(masks, *ids.shape)
        if self.with_seg:
            results['gt_seg_map'] = labels
