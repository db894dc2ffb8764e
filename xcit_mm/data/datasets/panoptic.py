"""COCO's panoptic annotations without panopticapi, a package that is not on PyPI. Needs mmdet.

A PNG file holds the segment id of each pixel (``segment_ids.py``), and a JSON file the category of
each segment. Things are objects that can be counted; stuff is the rest.
"""

from typing import Any

import numpy as np
from mmdet.datasets import CocoPanopticDataset
from mmdet.datasets.api_wrappers import COCOPanoptic
from mmdet.datasets.transforms import LoadPanopticAnnotations
from mmdet.registry import DATASETS, TRANSFORMS
from mmdet.structures.mask import BitmapMasks
from mmengine import fileio

from ...base.errors import UserError
from ..audit import annotations as problems
from ..audit.annotations import Problem
from ..audit.examples import Examples, examples_in_lists
from ..transforms.decode import BadImageError
from .coco import CheckedCocoDataset, indexed, log_problems, require_classes
from .segment_ids import segment_ids

IGNORED = 255  # mmdet's label of a pixel of no segment
WITHOUT_SEGMENT = 'its label file lacks a segment of the annotation file'


class _SegmentsOfImages(COCOPanoptic):
    """mmdet's COCOPanoptic, in which an id of a segment is unique only within its image.

    mmdet searches all images for each id of a segment. If each image numbers its segments from 1,
    this takes quadratic time.
    """

    def get_ann_ids(self, img_ids: list[int]) -> list[tuple[int, int]]:
        return [(id_, i) for id_ in img_ids for i in range(len(self.imgToAnns.get(id_, ())))]

    def load_anns(self, ids: list[tuple[int, int]]) -> list[dict]:
        return [self.imgToAnns[image_id][i] for image_id, i in ids]


@DATASETS.register_module()
class CheckedPanopticDataset(CocoPanopticDataset):
    """mmdet's CocoPanopticDataset, but it refuses annotations that mmdet would misread.

    It takes the same arguments. The heads of mmdet number the things first.

    Attributes:
        problems: The segments and images that training leaves out.
        examples: The segments of each class.
        remark: See ``CheckedCocoDataset``.

    Raises:
        UserError: If the annotation file is invalid, has different classes, things or stuff, if
            no image is left, or in ``test_mode`` if an image has no annotation.
    """

    problems: list[Problem]
    remark: str
    examples: Examples

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
        missing = [i['file_name'] for i in content['images'] if i['id'] not in self._png_names]
        if missing and self.test_mode:
            raise UserError(
                f'{path}: {len(missing)} images, such as {missing[0]}, have no annotation, so they '
                'cannot be evaluated: annotate them, or remove them from the file'
            )
        return indexed(_SegmentsOfImages(), content)

    def full_init(self) -> None:
        if not self._fully_initialized:
            self.problems = []
            super().full_init()
            log_problems(self)

    def parse_data_info(self, raw_data_info: dict) -> dict:
        info = super().parse_data_info(raw_data_info)
        ids = {segment['id'] for segment in info['segments_info']}
        self.problems += [
            Problem(problems.NO_SIZE, info['img_path'], segment['id'])
            for segment in raw_data_info['raw_ann_info']
            if segment['id'] not in ids
        ]
        name = self._png_names.get(info['img_id'])
        if info['seg_map_path'] is not None and name is not None:
            # mmdet takes the name of the image, with .png.
            info['seg_map_path'] = fileio.join_path(self.data_prefix['seg'], name)
        return info

    def filter_data(self) -> list[dict]:
        infos = []
        for info in super().filter_data():
            if info['img_id'] in self._png_names:
                infos.append(info)
            else:
                self.problems.append(Problem(problems.NO_ANNOTATION, info['img_path'], None))
        if not infos:
            raise UserError(
                f'{self.ann_file}: none of its {len(self.data_list)} images is left: they have no '
                'annotation or no things, or are smaller than filter_cfg.min_size'
            )
        self.examples = examples_in_lists(infos, len(self.metainfo['classes']))
        return infos

    consequence = CheckedCocoDataset.consequence


@TRANSFORMS.register_module()
class LoadPanoptic(LoadPanopticAnnotations):
    """mmdet's LoadPanopticAnnotations, but it refuses a PNG without an annotated segment.

    It has the arguments of mmdet's ``LoadAnnotations``.

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
