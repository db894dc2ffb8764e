"""A dataset that draws windows from large images at random, without cutting files."""

import math
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from ..datasets.decode import BadImageError, SampleError
from ..datasets.labels import LabelRule
from ..errors import ArgumentError, UserError
from ..progress import LOG_INTERVAL
from ..scenes.class_cells import ClassCells, count_cells
from ..scenes.geometry import Span, Window, length
from ..scenes.label_windows import LabelWindows
from .read_window import ReadWindow
from .scene_transforms import LoadObjects, OpenLabels, labels_of
from .scenes_dataset import Scenes

NO_DATA = 'no window with data was found in it'
MAX_DRAWS = 32  # windows that are drawn until one has enough pixels with data
MAX_OPEN = 8  # scenes that are open in a process


class Choice(NamedTuple):
    """A scene, and what a window of it has to show: nothing, an object, or a class in a cell."""

    scene: int
    label: int | None = None
    part: int | None = None


class Drawn(NamedTuple):
    """A window of a scene, which of its pixels have data (None: all), and their share."""

    scene: int
    window: Window
    is_valid: np.ndarray | None
    share: float


@DATASETS.register_module()
class SceneWindows(Scenes):
    """Windows of large images, drawn at random in each iteration.

    The pipeline starts with :class:`.ReadWindow`. Which window a sample shows follows from NumPy's
    global random numbers, which a run seeds for each sample with the iteration and its place in the
    batch. So a resumed run draws the same windows, with any number of data workers. With
    ``test_mode``, the windows follow from the index.

    Scenes are drawn in proportion to their area. If ``balanced``, a class is drawn first, with the
    same probability for each class, and then one of its pixels or objects in all scenes. The window
    shows it at a random place.

    Args:
        window: The side of the windows in pixels, or (h, w). A smaller scene is padded.
        length: The number of windows of an epoch. Default: as many as cover all scenes once.
        balanced: Whether all classes are drawn equally often.
        min_valid: The smallest share of pixels with data in a window. If 32 windows have less, the
            one with the most is used; if none has any, another sample takes its place.
        min_visible: An object of which a smaller share of the area is in the window is ignored: it
            is neither a target nor background.

    The other arguments and errors are the same as in :class:`.Scenes`.

    Raises:
        UserError: If a scene has no labels, or a label that is not a class; if ``balanced`` and no
            scene has a class.
    """

    def __init__(
        self,
        *args: Any,
        window: int | Sequence[int] = 512,
        length: int | None = None,
        balanced: bool = False,
        min_valid: float = 0.5,
        min_visible: float = 0.3,
        **kwargs: Any,
    ) -> None:
        size = (window, window) if isinstance(window, int) else tuple(window)
        if len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
            raise ArgumentError(f'SceneWindows: window={window!r} is not a size in pixels')
        if length is not None and (type(length) is not int or length < 1):
            raise ArgumentError(f'SceneWindows: length={length!r} is not a positive integer')
        for name, share in (('min_valid', min_valid), ('min_visible', min_visible)):
            if not 0 <= share <= 1:
                raise ArgumentError(f'SceneWindows: {name}={share!r} is not a number from 0 to 1')
        self.size, self._length, self._balanced = size, length, balanced
        self._min_valid, self._min_visible = min_valid, min_visible
        self._open: OrderedDict[int, dict] = OrderedDict()
        super().__init__(*args, **kwargs)

    def __getstate__(self) -> dict:  # open files are not sent to data workers
        return {**self.__dict__, '_open': OrderedDict()}

    def __len__(self) -> int:
        self.full_init()
        return self._length

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        self._reader = next(iter(self.pipeline.transforms), None)
        if not isinstance(self._reader, ReadWindow):
            raise ArgumentError(
                f'SceneWindows: the first transform of its pipeline is '
                f'{type(self._reader).__name__}: use ReadWindow'
            )
        super().full_init()
        sizes = np.array([(info['height'], info['width']) for info in self.data_list])
        self._areas = sizes.prod(axis=1) / sizes.prod(axis=1).sum()
        if self._length is None:
            self._length = int((-(-sizes // self.size)).prod(axis=1).sum())
        # Labels whose pixels are counted. Files are pickled, and opened only when they are needed.
        self._labels: list[LabelWindows | bytes] = []
        self._cells: list[ClassCells] = []
        if not self._with_objects:
            self._open_all_labels()
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
            pipeline=[self._reader.opener, load],
            lazy_init=True,
        )
        scenes.data_list, scenes._fully_initialized = self.data_list, True
        return scenes

    def get_data_info(self, idx: int) -> dict:
        """Return the size of a sample; its scene is known only when its window is drawn."""
        self.full_init()
        height, width = self.size
        info = self.data_list[idx % len(self.data_list)]
        return {**info, 'height': height, 'width': width, 'sample_idx': idx}

    def prepare_data(self, idx: int) -> Any:
        """Draw a window, and return it after the pipeline.

        Raises:
            SampleError: If the window cannot be read; it names the image.
        """
        seed = idx if self.test_mode else np.random.randint(2**31, size=4).tolist()
        drawn = self._draw(np.random.default_rng(seed))
        info, window = self.data_list[drawn.scene], drawn.window
        with self._named(drawn.scene):
            of_window = dict(window=window, window_size=self.size, is_valid=drawn.is_valid)
            if self._with_objects:
                objects = info['polygons'].objects(window, self._min_visible)
                of_window['instances'] = [_ignored_without_data(o, drawn.is_valid) for o in objects]
            return self.pipeline({**self._opened(drawn.scene), **of_window, 'sample_idx': idx})

    def _draw(self, rng: np.random.Generator) -> Drawn:
        """Draw windows until one has enough pixels with data, and return the best."""
        best = None
        for _ in range(MAX_DRAWS):
            choice = self._choose(rng)
            with self._named(choice.scene):
                drawn = self._look(choice, rng)
            if best is None or drawn.share > best.share:
                best = drawn
            if best.share >= self._min_valid:
                break
        if not best.share:
            raise SampleError(self.data_list[best.scene]['img_path'], BadImageError(NO_DATA))
        return best

    def _choose(self, rng: np.random.Generator) -> Choice:
        if not self._balanced:
            return Choice(int(rng.choice(len(self._areas), p=self._areas)))
        label = int(rng.integers(len(self.classes)))
        scenes, parts, until = self._places[label]
        entry = np.searchsorted(until, rng.integers(until[-1]), side='right')
        return Choice(int(scenes[entry]), label, int(parts[entry]))

    def _look(self, choice: Choice, rng: np.random.Generator) -> Drawn:
        """Place a window at random so that it shows what was chosen."""
        info = self.data_list[choice.scene]
        size, shown = (info['height'], info['width']), None
        if choice.label is not None:
            shown = self._shown(choice, size, rng)
        spans = zip(shown or (None, None), self.size, size, strict=True)
        window = Window(*(_placed(*span, rng) for span in spans))
        is_valid = self._opened(choice.scene)['img'].valid(window)
        return Drawn(choice.scene, window, is_valid, 1 if is_valid is None else is_valid.mean())

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

    def _opened(self, scene: int) -> dict:
        """Return a scene with its open image and labels."""
        if scene not in self._open:
            opened = self._reader.opener(self.data_list[scene])
            if not self._with_objects:
                labels = self._labels[scene]
                is_file = isinstance(labels, bytes)
                labels = pickle.loads(labels) if is_file else labels
                opened['label_windows'] = labels.of_image(opened['img'])
            self._open[scene] = opened
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(scene)
        return self._open[scene]

    @contextmanager
    def _named(self, scene: int) -> Iterator[None]:
        """Turn errors into a SampleError that names the image, so that another sample is used."""
        try:
            yield
        except Exception as error:  # decoders and transforms raise many kinds
            raise SampleError(self.data_list[scene]['img_path'], error) from error

    def _open_all_labels(self) -> None:
        logged = monotonic()
        for number, info in enumerate(self.data_list):
            if monotonic() - logged > LOG_INTERVAL:
                logged = monotonic()
                print_log(
                    f'counted the labels of {number} of {len(self.data_list)} scenes', 'current'
                )
            self._open_labels(info)

    def _open_labels(self, info: dict) -> None:
        """Open the labels of a scene, and count their pixels."""
        try:
            labels = labels_of(self._reader.opener(info))
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


def _placed(shown: Span | None, side: int, size: int, rng: np.random.Generator) -> Span:
    """Draw a span of ``side`` pixels on an axis of ``size`` pixels; an axis may be shorter."""
    if size <= side:
        return slice(0, size)
    first, last = 0, size - side
    if shown is not None:
        if length(shown) > side:
            middle = (shown.start + shown.stop) // 2
            shown = slice(middle, middle + 1)
        first, last = max(first, shown.stop - side), min(last, shown.start)
    start = int(rng.integers(first, last + 1))
    return slice(start, start + side)


def _ignored_without_data(instance: dict, is_valid: np.ndarray | None) -> dict:
    """Ignore an object without a pixel that has data."""
    if is_valid is None:
        return instance
    left, top, right, bottom = instance['bbox']
    inside = is_valid[int(top) : math.ceil(bottom), int(left) : math.ceil(right)]
    return instance if inside.any() else {**instance, 'ignore_flag': 1}
