"""Windows of large images, drawn at random: the base of such datasets, and one without labels."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ...base.geometry import Span, Window, length
from ...data.transforms.decode import BadImageError, SampleError
from ..files.open_image import open_header
from .scenes_dataset import images_of, listed

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


class DrawnWindows(BaseDataset):
    """Windows of large images, drawn at random in each iteration; the base of such datasets.

    The pipeline starts with :class:`.ReadWindow`. Which window a sample shows follows from NumPy's
    global random numbers, which a run seeds for each sample with the iteration and its place in the
    batch. So a resumed run draws the same windows, with any number of data workers. With
    ``test_mode``, the windows follow from the index.

    Scenes are drawn in proportion to their area. A subclass lists the scenes in ``load_data_list``,
    with ``img_path``, ``height`` and ``width``, and does not serialize them.

    Args:
        window: The side of the windows in pixels, or (h, w). A smaller scene is padded.
        length: The number of windows of an epoch. Default: as many as cover all scenes once.
        min_valid: The smallest share of pixels with data in a window. If 32 windows have less, the
            one with the most is used; if none has any, another sample takes its place.
    """

    def __init__(
        self,
        *args: Any,
        window: int | Sequence[int] = 512,
        length: int | None = None,
        min_valid: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.size = (window, window) if isinstance(window, int) else tuple(window)
        self._length, self._min_valid = length, min_valid
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
        self._opener = self.pipeline.transforms[0].opener  # of ReadWindow
        super().full_init()
        sizes = np.array([(info['height'], info['width']) for info in self.data_list])
        self._areas = sizes.prod(axis=1) / sizes.prod(axis=1).sum()
        if self._length is None:
            self._length = int((-(-sizes // self.size)).prod(axis=1).sum())

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
        with self._named(drawn.scene):
            of_window = dict(self._of_window(drawn), window_size=self.size, sample_idx=idx)
            return self.pipeline({**self._opened(drawn.scene), **of_window})

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
        return Choice(int(rng.choice(len(self._areas), p=self._areas)))

    def _look(self, choice: Choice, rng: np.random.Generator) -> Drawn:
        """Place a window at random so that it shows what was chosen."""
        info = self.data_list[choice.scene]
        size = info['height'], info['width']
        shown = (None, None) if choice.label is None else self._shown(choice, size, rng)
        spans = zip(shown, self.size, size, strict=True)
        window = Window(*(_placed(*span, rng) for span in spans))
        is_valid = self._opened(choice.scene)['img'].valid(window)
        return Drawn(choice.scene, window, is_valid, 1 if is_valid is None else is_valid.mean())

    def _of_window(self, drawn: Drawn) -> dict:
        """Return what the pipeline gets of a window in addition to the open scene."""
        return dict(window=drawn.window, is_valid=drawn.is_valid)

    def _opened(self, scene: int) -> dict:
        """Return a scene with its open image."""
        if scene not in self._open:
            self._open[scene] = self._opened_now(scene)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(scene)
        return self._open[scene]

    def _opened_now(self, scene: int) -> dict:
        return self._opener(self.data_list[scene])

    @contextmanager
    def _named(self, scene: int) -> Iterator[None]:
        """Turn errors into a SampleError that names the image, so that another sample is used."""
        try:
            yield
        except Exception as error:  # decoders and transforms raise many kinds
            raise SampleError(self.data_list[scene]['img_path'], error) from error


@DATASETS.register_module()
class UnlabeledWindows(DrawnWindows):
    """Windows of large images for a training without labels, drawn at random in each iteration.

    The pipeline is :class:`.ReadWindow`, which also reads other bands than RGB,
    :class:`~xcit_mm.data.transforms.multi_crop.MultiCrop` and
    :class:`~xcit_mm.data.transforms.image_transforms.PackImage`. See :class:`.DrawnWindows` for the
    order, and for the other arguments.

    Args:
        data_prefix: ``dict(img=...)``, the folder of the images.
        img_suffix: The end of the names of the images, which may also be in folders inside.

    Raises:
        UserError: If the folder has no image, or an image that cannot be opened.
    """

    def __init__(
        self, *args: Any, data_prefix: Mapping[str, str], img_suffix: str = '.tif', **kwargs: Any
    ) -> None:
        self._suffix = img_suffix
        super().__init__(*args, data_prefix={**data_prefix}, serialize_data=False, **kwargs)

    def load_data_list(self) -> list[dict]:
        images = enumerate(images_of(self, self._suffix))
        return [listed(path, number, open_header(path)) for number, path in images]

    def scenes(self) -> BaseDataset:
        """Return the whole scenes as a dataset of open images."""
        self.full_init()
        scenes = BaseDataset(pipeline=[self._opener], serialize_data=False, lazy_init=True)
        scenes.data_list, scenes._fully_initialized = self.data_list, True
        return scenes


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
