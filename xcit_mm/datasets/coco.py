"""mmdet's COCO dataset that says which annotations it does not take, and stops at none of them."""

import logging
from collections import Counter
from typing import Any

from mmdet.datasets import CocoDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS
from mmengine.logging import print_log

from ..errors import UserError, printable
from .annotations import (
    BROKEN_MASK,
    BROKEN_PART,
    DROPPED,
    IN_EVALUATION,
    IN_TRAINING,
    KEPT,
    LEFT_OUT,
    LOST,
    NO_CROWD_FLAG,
    NO_IMAGE,
    NO_MASK,
    NO_OBJECTS,
    STOPS,
    TOO_SMALL,
    UNKNOWN_CATEGORY,
    Problem,
    annotation_problem,
    area,
    evaluation_problem,
    is_number,
    looks_of_box,
    read_annotations,
    usable_mask,
)

CLEAR_SHARE = 0.9  # of the annotations, whose boxes look like another format
OTHER_CAUSES = {
    NO_MASK: 'train a model without masks, or add the masks',
    UNKNOWN_CATEGORY: 'are their category_id those of categories?',
}
OF_OTHER_IMAGES = 'are they of images of another size?'
NAMED = 3  # of the problems in an error
REMEDY = 'tools/check_dataset.py CONFIG names them all'


class AnnotationError(UserError):
    """Annotations that stop a run; ``problems`` of the dataset has them."""


@DATASETS.register_module()
class CheckedCocoDataset(CocoDataset):
    """mmdet's CocoDataset, which drops the annotations that it drops, and says so.

    A mask that is missing or broken, which would stop a training or end the process, makes its
    object one that is ignored.

    Args:
        *args: Those of CocoDataset.
        **kwargs: Those of CocoDataset.

    Attributes:
        problems: What is not as it should be, in the order of the file. Copies for the processes
            of a loader are without.

    Raises:
        UserError: If the annotation file is none.
        AnnotationError: If no image is left, or in ``test_mode`` if there is an annotation that
            pycocotools, which reads the file itself, stops at or takes for something else.
    """

    problems: list[Problem]

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        self.problems = []
        self._looks: Counter[str] = Counter()
        self._num_annotations = 0
        self._with_masks = _loads_masks(self.pipeline)
        super().full_init()
        self._log_problems()
        stopping = [p for p in self.problems if self.fate(p.kind) == STOPS]
        if stopping:
            raise AnnotationError(
                f'{self.ann_file}: {len(stopping)} annotations cannot be evaluated: '
                + '; '.join(f'{p.annotation_id} ({p.image}): {p.kind}' for p in stopping[:NAMED])
                + f'{"; ..." if len(stopping) > NAMED else ""}. Mend or remove them; {REMEDY}'
            )

    def COCOAPI(self, path: str) -> COCO:  # noqa: N802  what mmdet calls to read the file
        coco = COCO()
        coco.dataset = read_annotations(path)
        coco.createIndex()
        coco.img_ann_map, coco.cat_img_map = coco.imgToAnns, coco.catToImgs
        for annotation in coco.dataset.get('annotations', ()):
            if annotation['image_id'] not in coco.imgs:
                image = f'image {annotation["image_id"]}'
                self.problems.append(Problem(NO_IMAGE, image, annotation['id']))
        return coco

    def parse_data_info(self, raw_data_info: dict) -> dict:
        image = raw_data_info['raw_img_info']
        taken, problems = [], []
        for annotation in raw_data_info['raw_ann_info']:
            if annotation.get('ignore') and not self.test_mode:  # as mmdet
                continue
            self._num_annotations += 1
            self._looks.update(looks_of_box(annotation.get('bbox'), image))
            kind = None
            if self.test_mode and annotation['category_id'] in self.cat2label:
                kind = evaluation_problem(annotation, image, self._with_masks)
            if kind is None:
                kind = annotation_problem(annotation, image, self.cat2label, self._with_masks)
            if kind is not None:
                problems.append((kind, annotation['id']))
            if IN_TRAINING.get(kind) != DROPPED:
                taken.append(_mended(annotation, kind, image))
        info = super().parse_data_info({'raw_img_info': image, 'raw_ann_info': taken})
        self.problems += [Problem(kind, info['img_path'], number) for kind, number in problems]
        if self._with_masks:
            for instance in info['instances']:
                instance.setdefault('mask', [])  # mmdet ignores the object then
        return info

    def filter_data(self) -> list[dict]:
        empty = [info for info in self.data_list if not info['instances']]
        self._note(NO_OBJECTS, empty)
        min_size = self._filter('min_size')
        small = (info for info in self.data_list if min(info['width'], info['height']) < min_size)
        self._note(TOO_SMALL, small)
        kept = super().filter_data()
        if self._filter('filter_empty_gt'):  # mmdet keeps those whose objects it dropped
            kept = [info for info in kept if info['instances']]
        if not kept:
            self._log_problems()
            why = self.misplaced(max_share=0)
            raise AnnotationError(
                f'{self.ann_file}: none of its {len(self.data_list)} images is left'
                f'{f": {why}" if why else ""}; {REMEDY}'
            )
        return kept

    def misplaced(self, max_share: float) -> str | None:
        """Why more of the annotations than slips explain are lost, or not where they were meant.

        Those that stop a run by themselves are not counted.

        Args:
            max_share: Of the annotations that may be so.

        Returns:
            The end of a sentence, with the likely cause; None if they are not so many.
        """
        kinds = [kind for kind in LOST if self.fate(kind) != STOPS]
        lost = Counter(p.kind for p in self.problems if p.kind in kinds)
        if lost.total() <= max_share * self._num_annotations:
            return None
        listed = ', '.join(f'{count} x {kind}' for kind, count in lost.most_common())
        clear = CLEAR_SHARE * self._num_annotations
        other_formats = (look for look, count in self._looks.items() if count >= clear)
        [(most_common, _)] = lost.most_common(1)
        cause = OTHER_CAUSES.get(most_common) or next(other_formats, OF_OTHER_IMAGES)
        return f'{lost.total()} of the {self._num_annotations} annotations ({listed}): {cause}'

    def fate(self, kind: str) -> str:
        """What happens with a problem of this kind."""
        if kind == NO_OBJECTS:
            return LEFT_OUT if self._filter('filter_empty_gt') else KEPT
        if kind == TOO_SMALL:
            return LEFT_OUT
        return (IN_EVALUATION if self.test_mode else IN_TRAINING)[kind]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, 'problems': []}

    def _filter(self, name: str) -> int | bool:
        """A value of ``filter_cfg``, which mmdet leaves out in an evaluation."""
        return 0 if self.test_mode else (self.filter_cfg or {}).get(name, 0)

    def _note(self, kind: str, infos: list[dict]) -> None:
        self.problems += [Problem(kind, info['img_path'], None) for info in infos]

    def _log_problems(self) -> None:
        counts = Counter(problem.kind for problem in self.problems)
        if counts:
            listed = ', '.join(f'{n} x {kind} ({self.fate(kind)})' for kind, n in counts.items())
            is_usual = counts.keys() <= {NO_OBJECTS, TOO_SMALL}
            print_log(
                printable(f'{self.ann_file}: {listed}; {REMEDY}'),
                logger='current',
                level=logging.INFO if is_usual else logging.WARNING,
            )


def _loads_masks(transform: Any) -> bool:
    """Whether a transform, or one inside of it, loads masks."""
    if isinstance(transform, list):
        return any(map(_loads_masks, transform))
    return getattr(transform, 'with_mask', False) or _loads_masks(
        getattr(transform, 'transforms', [])
    )


def _mended(annotation: dict, kind: str | None, image: dict) -> dict:
    if not is_number(annotation.get('area')):
        annotation = {**annotation, 'area': area(annotation)}
    if kind == NO_CROWD_FLAG:
        annotation = {**annotation, 'iscrowd': 1}  # mmdet ignores the object then
    if kind in (NO_MASK, BROKEN_MASK, BROKEN_PART):
        mask = usable_mask(annotation.get('segmentation'), image)
        annotation = {**annotation, 'segmentation': mask}
    return annotation
