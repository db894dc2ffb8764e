"""How images that do not fit into memory are predicted."""

from dataclasses import dataclass
from pathlib import Path

from ...base.errors import ArgumentError
from ...base.sizes import bytes_of
from .open_scene import SceneOptions

CHOICES = dict(probabilities=(None, 'uint8', 'float16'), positions=('scene', 'data'))
MIN_SLICE = 32  # pixels
MAX_BATCH, BATCH_PIXELS = 8, 2**19  # of slices; more take more memory, and little less time


@dataclass(frozen=True)
class LargeOptions(SceneOptions):
    """How an image that does not fit into memory is predicted; see also :class:`.SceneOptions`.

    Attributes:
        memory: Bytes, or a text such as '2GiB', that the tokens, the labels and a tile may take in
            memory. If they need more, tokens and labels are stored in files in ``store``. Default:
            half of the free memory, divided by the number of processes on this machine.
        store: A folder for these files, and for what is finished of ``sliced`` predictions. If a
            call was killed, the next one continues there.
        score_thr: The lowest score of objects.
        with_scores: Whether a segmentor returns the probabilities of the labels as well.
        probabilities: 'uint8' (255 is 1) or 'float16' if a segmentor returns the probabilities of
            all classes as well.
        statistics_window: Side of a window in pixels. The attention statistics of a tile are
            computed in this window around the tile instead of over the whole image.
        sliced: Side of slices in pixels, which the model predicts one by one. This works with any
            detector and segmentor.
        overlap: Pixels that neighboring slices share.
        positions: 'data' encodes the positions of the patches relative to the smallest window that
            holds all pixels with data, so that the prediction is the same whatever surrounds this
            window. 'scene' encodes them relative to the whole image, as in training on whole
            images.
        batch_size: The number of slices that go through the model together. Default: as many as
            have 2^19 pixels together, at least 1 and at most 8.

    Raises:
        ArgumentError: If a value is invalid, or slices are combined with options of streaming.
    """

    memory: int | str | None = None
    store: str | Path | None = None
    score_thr: float = 0.0
    with_scores: bool = False
    statistics_window: int | None = None
    sliced: int | None = None
    overlap: int = 128
    probabilities: str | None = None
    positions: str = 'data'
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.memory, str):
            object.__setattr__(self, 'memory', bytes_of(self.memory))
        for name, choices in CHOICES.items():  # others would silently count as one of these
            if getattr(self, name) not in choices:
                raise ArgumentError(f'{name}={getattr(self, name)!r} is not one of {choices}')
        if self.batch_size is not None and self.batch_size < 1:
            raise ArgumentError(f'batch_size={self.batch_size!r} must be 1 or more')
        if not 0 <= self.score_thr <= 1:
            raise ArgumentError(f'score_thr={self.score_thr!r} must be between 0 and 1')
        if self.sliced is None:
            return
        if self.statistics_window is not None or self.with_scores or self.probabilities:
            raise ArgumentError(
                '--sliced cannot be combined with --statistics-window, --scores or --probabilities'
            )
        if self.sliced < MIN_SLICE or not 0 <= self.overlap < self.sliced:
            raise ArgumentError(
                f'slices of {self.sliced} pixels with an overlap of {self.overlap} are not '
                f'possible: slices need {MIN_SLICE} pixels or more, and the overlap has to be '
                'smaller'
            )

    @property
    def slices_together(self) -> int:
        """The number of slices that go through the model together."""
        return self.batch_size or max(1, min(MAX_BATCH, BATCH_PIXELS // self.sliced**2))
