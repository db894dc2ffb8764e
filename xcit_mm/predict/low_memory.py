"""Inference on large images, whose maps and scores take gigabytes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from ..large.maps.known_models import has_unmodified_head
from ..large.maps.resized_labels import bilinear, labels_of_resized
from ..network.pyramid import covered_size


class SingleUseMaps(list):
    """Feature maps, each of which is freed once it has been read."""

    def __getitem__(self, index: int) -> Tensor | None:
        feature_map = super().__getitem__(index)
        self[index] = None
        return feature_map


def free_backbone_maps(model: nn.Module) -> AbstractContextManager:
    """Free each map once the FPN has read it, within a ``with`` block: a quarter of the memory.

    A neck that is not an FPN may read a map twice.
    """
    neck = getattr(model, 'neck', None)
    if type(neck).__name__ not in ('FPN', 'FusedFPN') or neck.add_extra_convs == 'on_input':
        return nullcontext()
    return model.backbone.register_forward_hook(lambda module, inputs, maps: SingleUseMaps(maps))


def segment(model: nn.Module, data: dict[str, Any]) -> list[Tensor]:
    """Return the labels (H, W) of each image at its original size.

    mmseg resizes the scores of all classes to the size of the image. That needs 14 GB for 150
    classes and 24 megapixels. Here, only the scores that can win somewhere are resized; see
    :mod:`xcit_mm.large.maps.resized_labels`. Sliding windows and segmentors with their own
    inference are left to mmseg.
    """
    from ..network.models.aligned_segmentors import AlignedSegmentor

    is_whole = (
        has_unmodified_head(model)
        and model.out_channels > 1
        and model.test_cfg.get('mode', 'whole') == 'whole'
    )
    if not is_whole:
        return [sample.pred_sem_seg.data[0] for sample in model.test_step(data)]
    data = model.data_preprocessor(data, False)
    samples = data['data_samples']
    size = data['inputs'].shape[2:]
    scores = model(data.pop('inputs'), samples, mode='tensor')  # (B, classes, H/4, W/4)
    # mmseg's own segmentors, on other backbones than XCiT, resize scores to the image.
    covered = covered_size(size) if isinstance(model, AlignedSegmentor) else tuple(size)
    of_images = zip(scores.float().unbind(), samples, strict=True)
    return [
        _labels(values, covered, size, sample.metainfo, model.align_corners)
        for values, sample in of_images
    ]


def _labels(
    scores: Tensor,
    covered: tuple[int, int],
    size: tuple[int, int],
    meta: dict[str, Any],
    align_corners: bool,
) -> Tensor:
    # Resize to the area that the maps cover, cut off the padding, and resize to the original size.
    _, right, _, bottom = meta.get('img_padding_size', meta.get('padding_size', (0, 0, 0, 0)))
    seen = slice(size[0] - bottom), slice(size[1] - right)
    sizes = covered, seen, meta['ori_shape'][:2]
    rows, columns = (
        bilinear(n, of_axis, align_corners)
        for n, *of_axis in zip(scores.shape[1:], *sizes, strict=True)
    )
    return labels_of_resized(scores, rows, columns)
