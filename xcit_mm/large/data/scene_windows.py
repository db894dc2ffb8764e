"""A dataset that draws windows with labels from large images, without cutting files."""

import math
import pickle
from typing import Any

import numpy as np
from mmengine.registry import DATASETS

from ...base.errors import UserError
from ...base.geometry import Window
from ...data.datasets.labels import LabelRule
from ...data.transforms.decode import BadImageError
from ..labels.class_cells import ClassCells, count_cells
from ..labels.label_windows import LabelWindows
from .drawn_windows import Choice, Drawn, DrawnWindows
from .scene_transforms import LoadObjects, OpenLabels, labels_of
from .scenes_dataset import Scenes


@DATASETS.register_module()
class SceneWindows(DrawnWindows, Scenes):
    """Windows of large images with labels, drawn at random in each iteration.

    See :class:`.DrawnWindows` for the pipeline and the order. Scenes are drawn in proportion to
    their area. If ``balanced``, a class is drawn first, with the same probability for each class,
    and then one of its pixels or objects in all scenes. The window shows it at a random place.

    Args:
        balanced: Whether all classes are drawn equally often.
        min_visible: An object of which a smaller share of the area is in the window is ignored: it
            is neither a target nor background.

    The other arguments and errors are the same as in :class:`.DrawnWindows` and :class:`.Scenes`.

    Raises:
        UserError: If a scene has no labels, or a label that is not a class; if ``balanced`` and no
            scene has a class.
    """

    def __init__(
        self,
        *args: Any,
        balanced: bool = False,
        min_visible: float = 0.3,
        **kwargs: Any,
    ) -> None:
        self._balanced, self._min_visible = balanced, min_visible
        super().__init__(*args, **kwargs)

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        super().full_init()
        # Labels whose pixels are counted. Files are pickled, and opened only when they are needed.
        self._labels: list[LabelWindows | bytes] = []
        self._cells: list[ClassCells] = []
        if not self._with_objects:
            for info in self.data_list:
                self._open_labels(info)
        elif not any(len(info['polygons'].shapes) for info in self.data_list):
            raise UserError(
                f'none of the {len(self.data_list)} scenes in {self.data_prefix["img"]} has an '
                'object: set label_suffix or ann_file of the dataset'
            )
        if self._balanced:
            self._index_classes()

    def scenes(self) -> Scenes:
        """Return the whole scenes as a dataset of open images, with the same labels or objects."""
        load = LoadObjects() if self._with_objects else OpenLabels()
        scenes = Scenes(
            ann_file=self.ann_file,
            metainfo=self._metainfo,
            data_prefix=self.data_prefix,
            with_objects=self._with_objects,
            pipeline=[self._opener, load],
            lazy_init=True,
        )
        scenes.data_list, scenes._fully_initialized = self.data_list, True
        return scenes

    def _of_window(self, drawn: Drawn) -> dict:
        of_window, info = super()._of_window(drawn), self.data_list[drawn.scene]
        if self._with_objects:
            objects = info['polygons'].objects(drawn.window, self._min_visible)
            of_window['instances'] = [_ignored_without_data(o, drawn.is_valid) for o in objects]
        return of_window

    def _choose(self, rng: np.random.Generator) -> Choice:
        if not self._balanced:
            return super()._choose(rng)
        label = int(rng.integers(len(self.classes)))
        scenes, parts, until = self._places[label]
        entry = np.searchsorted(until, rng.integers(until[-1]), side='right')
        return Choice(int(scenes[entry]), label, int(parts[entry]))

    def _shown(self, choice: Choice, size: tuple[int, int], rng: np.random.Generator) -> Window:
        """Return the window of a chosen object, or one pixel of a class in a cell."""
        if self._with_objects:
            shape = self.data_list[choice.scene]['polygons'].shapes[choice.part]
            return Window.around(shape.bounds, size)
        cell = self._cells[choice.scene].window(choice.part, size)
        labels = self._opened(choice.scene)['label_windows'].read(cell)
        rows, columns = np.nonzero(labels == choice.label)
        pixel = rng.integers(len(rows))
        row, column = cell.rows.start + int(rows[pixel]), cell.columns.start + int(columns[pixel])
        return Window(slice(row, row + 1), slice(column, column + 1))

    def _opened_now(self, scene: int) -> dict:
        """Return a scene with its open image and labels."""
        opened = super()._opened_now(scene)
        if not self._with_objects:
            labels = self._labels[scene]
            labels = pickle.loads(labels) if isinstance(labels, bytes) else labels
            opened['label_windows'] = labels.of_image(opened['img'])
        return opened

    def _open_labels(self, info: dict) -> None:
        """Open the labels of a scene, and count their pixels."""
        try:
            labels = labels_of(self._opener(info))
        except BadImageError as error:
            raise UserError(f'{info["img_path"]}: {error}') from None
        labels.require_classes(LabelRule(len(self.classes), labels.ignore))
        if not labels.labeled:
            raise UserError(
                f'{labels.name}: none of its pixels has a label: label some, or move '
                f'{info["img_path"]} to another folder'
            )
        if self._balanced:
            self._cells.append(count_cells(labels, len(self.classes)))
        labels = labels.of_image(None)  # which is opened only when it is needed
        self._labels.append(labels if 'label_source' in info else pickle.dumps(labels))

    def _index_classes(self) -> None:
        """List for each class where it is: scenes, their parts, and the sum of the weights so far.

        A part is a cell, whose weight is its number of pixels, or an object.
        """
        if self._with_objects:
            polygons = [info['polygons'] for info in self.data_list]
            labels = [np.where(p.are_ignored, -1, p.labels) for p in polygons]
            parts = [np.arange(len(p.labels)) for p in polygons]
            weights = [np.ones(len(p.labels), np.int64) for p in polygons]
        else:
            labels = [cells.classes for cells in self._cells]
            parts = [cells.cells for cells in self._cells]
            weights = [cells.counts for cells in self._cells]
        scenes = np.repeat(np.arange(len(labels)), [len(of_scene) for of_scene in labels])
        labels, parts, weights = map(np.concatenate, (labels, parts, weights))
        self._places = []
        for label, name in enumerate(self.classes):
            chosen = np.flatnonzero(labels == label)
            if not len(chosen):
                raise UserError(
                    f'balanced=True, but no scene in {self.data_prefix["img"]} has the class '
                    f'{name}: write balanced=False, or remove it from metainfo'
                )
            self._places.append((scenes[chosen], parts[chosen], np.cumsum(weights[chosen])))


def _ignored_without_data(instance: dict, is_valid: np.ndarray | None) -> dict:
    """Ignore an object without a pixel that has data."""
    if is_valid is None:
        return instance
    left, top, right, bottom = instance['bbox']
    inside = is_valid[int(top) : math.ceil(bottom), int(left) : math.ceil(right)]
    return instance if inside.any() else {**instance, 'ignore_flag': 1}
