"""scikit-learn's digits, real images of handwriting that are in the package, as image folders."""

from pathlib import Path

import cv2
import numpy as np

NUM_TRAIN = 1200  # of 1797, in the order of scikit-learn


def write_digits(root: Path, side: int = 32) -> None:
    """Write ``root/train`` and ``root/val`` with a folder of PNG images for each digit.

    The images of 8 x 8 pixels are enlarged to ``side``, in three equal channels.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        gray = cv2.resize(
            np.float32(image) * (255 / 16), (side, side), interpolation=cv2.INTER_CUBIC
        )
        pixels = np.repeat(gray.clip(0, 255).round().astype(np.uint8)[..., None], 3, axis=2)
        folder = root / ('train' if i < NUM_TRAIN else 'val') / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(folder / f'{i:04}.png'), pixels)
