"""Label images for segmentors, with the numbers that their files store."""

import io
import warnings
from pathlib import Path

import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image

from ...base.errors import UserError, reason
from ...base.finder import spelled
from ..datasets.labels import class_numbers, new_labels
from ..tiff.file_headers import TIFF
from ..tiff.places import shown_orientation
from ..tiff.tiff_bands import opened_tiff, read_bands, upright
from .decode import LABELS_MISSING, LABELS_UNREADABLE, OPENERS, BadImageError, LoadImage

PNG = b'\x89PNG'
DEPTH, COLOR_TYPE, GRAY = 24, 25, 0  # two bytes of the header of a PNG file, and a color type


@TRANSFORMS.register_module()
class LoadLabels:
    """Load a label image with the numbers that it stores, otherwise as mmseg's ``LoadAnnotations``.

    A palette, a photometric tag or the number of bits never change the numbers; the orientation of
    a TIFF file is followed, as that of an image is. Reads ``seg_map_path``, ``reduce_zero_label``
    and ``label_map``. Sets ``gt_seg_map``, (H, W) uint8, or uint16 if the file has more bits. A
    color image becomes (H, W, channels), which ``LabelCheckHook`` refuses. An image without
    ``seg_map_path`` stays as it is.

    Args:
        reduce_zero_label: Whether 0 is ignored, and the first class is 1. Default: as the dataset
            says.
        backend_args: Arguments of mmengine's file backend for data that is not in local files.

    Raises:
        BadImageError: If the file is missing or damaged.
        UserError: If a value is not a whole number from 0 to 65535, or if the dataset has another
            ``reduce_zero_label``.
    """

    def __init__(
        self, reduce_zero_label: bool | None = None, backend_args: dict | None = None
    ) -> None:
        self.reduce_zero_label = reduce_zero_label
        self._files = LoadImage(backend_args=backend_args)

    def __call__(self, results: dict) -> dict:
        path, of_dataset = results.get('seg_map_path'), bool(results.get('reduce_zero_label'))
        if path is None:  # of an image to predict, by mmseg's inference_model
            return results
        if self.reduce_zero_label not in (None, of_dataset):
            raise UserError(
                f'reduce_zero_label={self.reduce_zero_label} of LoadLabels, but the dataset has '
                f'{of_dataset}: write the same value in both'
            )
        values = decode_labels(self._files.read(path, LABELS_MISSING), path)
        classes = new_labels(values.dtype.itemsize, of_dataset, results.get('label_map'))
        results['gt_seg_map'] = classes[class_numbers(path, values)]
        results.setdefault('seg_fields', []).append('gt_seg_map')
        return results


def decode_labels(data: bytes, file: str) -> np.ndarray:
    """Return the numbers that a label image stores, (H, W), or (H, W, channels) of a color image.

    Raises:
        BadImageError: If it cannot be read. ``file`` is its name in the message.
    """
    try:
        if data.startswith(TIFF):
            with opened_tiff(data) as (tiff, tags):
                bands = np.moveaxis(read_bands(tiff, tiff.indexes), 0, -1)
            labels = upright(bands, shown_orientation(tags.orientation, spelled(Path(file))))
            return labels[..., 0] if labels.shape[2] == 1 else labels
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            with OPENERS.get(data[:2], Image.open)(io.BytesIO(data)) as image:
                labels = np.asarray(image)
    except UserError as error:
        raise BadImageError(LABELS_UNREADABLE, f'{file}: {error}') from None
    except Exception as error:  # the decoders of Pillow raise many kinds
        raise BadImageError(LABELS_UNREADABLE, f'{file} ({reason(error)})') from None
    bits = data[DEPTH] if data.startswith(PNG) and data[COLOR_TYPE] == GRAY else 8
    # Pillow scales gray values of 2 and 4 bits to 0..255.
    return labels // np.uint8(255 // (2**bits - 1)) if bits in (2, 4) else labels
