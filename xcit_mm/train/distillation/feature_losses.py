"""Losses between the features of a student and a teacher with different sizes and scales."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

BETA = 2.0  # for smooth L1, as in feature distillation (arXiv 2205.14141, section 3)


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return 1 minus the mean cosine of the angles between features (..., C)."""
    return 1 - mean_cosine(student, teacher)


def smooth_l1_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the smooth L1 loss between features (..., C) and normalized features of the teacher.

    A LayerNorm without parameters normalizes the teacher's features over their channels, because
    the scale of features differs by orders of magnitude between networks.
    """
    return F.smooth_l1_loss(student, F.layer_norm(teacher, teacher.shape[-1:]), beta=BETA)


def mean_cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean cosine of the angles between features (..., C)."""
    return F.cosine_similarity(student, teacher, dim=-1).mean()


def of_same_size(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Resize two maps (B, C, H, W) to the larger height and the larger width of both.

    Bilinear interpolation to the larger size keeps all features of both maps, and aligns features
    from the same position in the image.
    """
    size = [max(sides) for sides in zip(student.shape[2:], teacher.shape[2:], strict=True)]
    student, teacher = (
        x if list(x.shape[2:]) == size else F.interpolate(x, size, mode='bilinear')
        for x in (student, teacher)
    )
    return student, teacher


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    'cosine': cosine_loss,
    'smooth_l1': smooth_l1_loss,
}
