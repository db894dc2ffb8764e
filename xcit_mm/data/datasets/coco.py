"""mmdet's COCO dataset, but with a report of what it drops and without crashes at broken masks."""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from mmdet.datasets import CocoDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS
from mmengine.logging import print_log

from ...base.errors import UserError, did_you_mean, printable
from ...base.shipped import commands
from ...config.tree import class_name, loads_masks, typed_nodes
from ..audit import annotations as problems
from ..audit.annotations import HINT, Problem
from ..audit.examples import Examples, examples_in_lists
from ..transforms.decode import SampleError

NO_MASKS = 'train a model without masks, or add the masks'
# The likely causes if many annotations have the same problem, or are not inside their images.
CAUSES = {
    problems.NO_BOX: 'bbox has to be a list of four numbers, not of texts',
    problems.NO_SIZE: 'if the coordinates are relative, multiply them by the size of the image',
    problems.UNKNOWN_CATEGORY: 'each category_id has to be the id of a category',
    problems.NO_MASK: NO_MASKS,
    problems.BROKEN_MASK: NO_MASKS,
}
NOT_INSIDE = (
    'the boxes may be two corners instead of x, y, width, height, or fit images of another size'
)


@DATASETS.register_module()
class CheckedCocoDataset(CocoDataset):
    """mmdet's CocoDataset that also reports the annotations that it drops.

    An object whose mask is missing or broken, at which mmdet or pycocotools would fail or crash,
    is ignored in training. Masks are checked if the pipeline loads them. It has the arguments of
    ``CocoDataset``.

    Attributes:
        problems: The problems of the annotation file.
        examples: The objects of each class.
        remark: A sentence on numbers that were converted when it was read, or ''.

    Raises:
        UserError: If the annotation file is invalid or has different classes, if no image is left,
            or in ``test_mode`` if pycocotools cannot evaluate an annotation.
    """

    problems: list[Problem]
    remark: str
    examples: Examples

    def __init__(self, *args: Any, pipeline: Sequence[dict] = (), **kwargs: Any) -> None:
        self._with_masks = loads_masks(pipeline)
        kinds = {class_name(node['type']) for _, node in typed_nodes(pipeline)}
        self._keeps_polygons = 'OpenImage' in kinds  # in training, masks of whole images
        super().__init__(*args, pipeline=pipeline, **kwargs)

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        self.problems, self._num_annotations, self._num_no_corners = [], 0, 0
        super().full_init()
        log_problems(self)
        stopping = [p for p in self.problems if self.consequence(p.kind) == problems.STOPS]
        if stopping:
            named = (f'{p.annotation_id} ({p.image}): {p.kind}' for p in stopping[:3])
            raise UserError(
                f'{self.ann_file}: {len(stopping)} annotations cannot be evaluated, the first are '
                f'{"; ".join(named)}; correct or remove them; {HINT}'
            )

    def COCOAPI(self, path: str) -> COCO:  # noqa: N802  mmdet calls it to read the file
        content, self.remark = problems.read_annotations(path, self._encodes_masks)
        require_classes(self, content['categories'])
        coco = indexed(COCO(), content)
        for annotation in coco.dataset.get('annotations', ()):
            if annotation['image_id'] not in coco.imgs:
                image = f'image {annotation["image_id"]}'
                self.problems.append(Problem(problems.NO_IMAGE, image, annotation['id']))
        return coco

    @property
    def _encodes_masks(self) -> bool:
        return self._with_masks and (self.test_mode or not self._keeps_polygons)

    def parse_data_info(self, raw_data_info: dict) -> dict:
        image = raw_data_info['raw_img_info']
        usable, kinds = [], {}
        for annotation in raw_data_info['raw_ann_info']:
            if annotation.get('ignore') and not self.test_mode:  # mmdet skips it
                continue
            self._num_annotations += 1
            kind = problems.find_problem(
                annotation, image, self.cat2label, self._with_masks, self.test_mode
            )
            self._num_no_corners += not problems.may_be_corners(annotation, image)
            if kind is not None:
                kinds[annotation['id']] = kind
            if kind is None or problems.CONSEQUENCES[kind][0] != problems.DROPPED:
                mask = annotation.get('segmentation')
                if kind in (problems.BROKEN_MASK, problems.BROKEN_PART):
                    mask = problems.usable_mask(mask, image)
                area = problems.area(annotation)
                usable.append({**annotation, 'area': area, 'segmentation': mask})
        info = super().parse_data_info({'raw_img_info': image, 'raw_ann_info': usable})
        for id_, kind in kinds.items():
            self.problems.append(Problem(kind, info['img_path'], id_))
        if self._with_masks:
            for instance in info['instances']:
                instance.setdefault('mask', [])  # mmdet then ignores the object
        return info

    def get_cat_ids(self, idx: int) -> list[int]:
        """Return the classes for which a wrapper repeats an image: of the objects that are learned.

        mmdet also counts objects that are ignored in training, such as crowds.
        """
        instances = self.get_data_info(idx)['instances']
        return [i['bbox_label'] for i in instances if not i['ignore_flag']]

    def prepare_data(self, idx: int) -> Any:
        try:
            return super().prepare_data(idx)
        except Exception as error:  # a wrapper may mix several images, of which one is bad
            raise SampleError(self.get_data_info(idx)['img_path'], error) from error

    def filter_data(self) -> list[dict]:
        filters = {} if self.test_mode else self.filter_cfg or {}
        infos = []
        for info in self.data_list:
            if filters.get('filter_empty_gt') and not info['instances']:
                self.problems.append(Problem(problems.NO_OBJECTS, info['img_path'], None))
            elif min(info['width'], info['height']) < filters.get('min_size', 0):
                self.problems.append(Problem(problems.TOO_SMALL, info['img_path'], None))
            else:
                infos.append(info)
        if not infos:
            cause = self.misplaced(max_share=0)
            raise UserError(
                f'{self.ann_file}: none of its {len(self.data_list)} images is left'
                f'{f": {cause}" if cause else ""}; {HINT}'
            )
        self.examples = examples_in_lists(infos, len(self.metainfo['classes']))
        return infos

    def misplaced(self, max_share: float) -> str | None:
        """Return the likely cause if more than a share of the annotations is lost, or None.

        Annotations that stop the run by themselves do not count.
        """
        are_corners = self._num_no_corners <= problems.NO_CORNERS_SHARE * self._num_annotations
        lost = problems.LOST + (problems.BEYOND,) * are_corners
        kinds = [kind for kind in lost if self.consequence(kind) != problems.STOPS]
        lost = Counter(p.kind for p in self.problems if p.kind in kinds)
        if lost.total() <= max_share * self._num_annotations:
            return None
        listed = ', '.join(f'{count} x {kind}' for kind, count in lost.most_common())
        cause = CAUSES.get(lost.most_common()[0][0], NOT_INSIDE)
        return f'{lost.total()} of the {self._num_annotations} annotations ({listed}): {cause}'

    def consequence(self, kind: str) -> str:
        """Return what this dataset does about a problem."""
        return problems.CONSEQUENCES[kind][self.test_mode]


def indexed(coco: COCO, content: dict[str, Any]) -> COCO:
    """Fill an empty COCO with the content of an annotation file."""
    coco.dataset = content
    with redirect_stdout(None):  # pycocotools prints that it indexes
        coco.createIndex()
    coco.img_ann_map, coco.cat_img_map = coco.imgToAnns, coco.catToImgs
    return coco


def log_problems(dataset: CocoDataset) -> None:
    """Log what was converted in an annotation file, and the numbers of its problems."""
    if dataset.remark:
        print_log(printable(dataset.remark), 'current')
    counts = Counter(problem.kind for problem in dataset.problems)
    if counts:
        listed = ', '.join(f'{n} x {k} ({dataset.consequence(k)})' for k, n in counts.items())
        is_usual = counts.keys() <= {problems.NO_OBJECTS, problems.TOO_SMALL, problems.BEYOND}
        level = logging.INFO if is_usual else logging.WARNING
        print_log(printable(f'{dataset.ann_file}: {listed}; {commands(HINT)}'), 'current', level)


def require_classes(dataset: CocoDataset, categories: list[dict]) -> None:
    """Compare the classes of a dataset with the categories of its annotation file."""
    annotated = [category['name'] for category in categories]
    classes = dataset.metainfo['classes']
    if annotated != list(classes):  # mmdet would drop some, or number them as in the file
        order = ''
        if sorted(annotated) == sorted(classes):
            order = ', in another order, in which mmdet would take one class for another'
        unknown = [name for name in classes if name not in annotated]
        hint = did_you_mean(unknown[0], set(annotated) - {*classes}) if unknown else ''
        raise UserError(
            f'{dataset.ann_file} has the {len(annotated)} classes ({", ".join(annotated)}), '
            f'the config the {len(classes)} classes ({", ".join(classes)}){order}: set '
            "metainfo=dict(classes=...) of the datasets to the file's, in its order, and "
            f'num_classes={len(annotated)} in the heads{hint}'
        )
