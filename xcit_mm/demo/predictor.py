"""One model in memory, asked by one visitor at a time."""

import time
from pathlib import Path
from threading import Lock

import numpy as np

from ..inference import Detections, Model, Segmentation, load_model


class Predictor:
    """Keeps the model that was asked last, and reads another one in its place.

    Visitors wait for each other: two models at a time would need twice the memory, and two
    pictures at a time are no faster.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: tuple | None = None
        self._model: Model | None = None

    def load(self, config: str, checkpoint: str) -> None:
        """Read a model before the first picture comes.

        Raises:
            UserError: If the config or the checkpoint is wrong, or they do not fit each other.
        """
        with self._lock:
            self._load(config, checkpoint)

    def predict(
        self, config: str, checkpoint: str, image: np.ndarray
    ) -> tuple[Detections | Segmentation, float]:
        """Find what is in a picture.

        Args:
            config: Path of a config that is trusted.
            checkpoint: File or address of its weights, read without running anything in it.
            image: RGB, (H, W, 3) uint8.

        Returns:
            What was found, and the seconds that it took, without reading the model and waiting
            for others.

        Raises:
            UserError: If the config or the checkpoint is wrong, or they do not fit each other.
        """
        with self._lock:
            model = self._load(config, checkpoint)
            start = time.perf_counter()
            found = model.predict(image)
            return found, time.perf_counter() - start

    def _load(self, config: str, checkpoint: str) -> Model:
        key = (config, checkpoint, *map(_written, (config, checkpoint)))
        if key != self._key:
            self._key = self._model = None  # before the next one, which needs the room
            self._model = load_model(config, checkpoint)
            self._key = key
        return self._model


def _written(path: str) -> int | None:
    """A training may replace a file by a better one of the same name."""
    return Path(path).stat().st_mtime_ns if Path(path).is_file() else None
