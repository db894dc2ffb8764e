"""Training of classifiers with the paper's recipe, with or without a teacher."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from ...base.environment import require
from ...base.errors import UserError


@MODELS.register_module()
class ImageClassifier(BaseModel):
    """An :class:`.ImageXCiT` that learns the classes of images.

    With a teacher, the loss is the mean of two cross entropies: with the labels, and with the class
    that the teacher predicts for the same image (hard distillation; Touvron et al., arXiv
    2012.12877). XCiT has no distillation token, so both losses use the same logits, as in the
    release.

    Args:
        backbone: The config of the ``ImageXCiT``, with ``num_classes``.
        data_preprocessor: The config of an :class:`.ImagePreprocessor`.
        mixup: The arguments of timm's ``Mixup``, such as ``dict(mixup_alpha=0.8,
            cutmix_alpha=1.0)``. The number of images in a batch has to be even. None: images are
            not mixed.
        teacher: The config of a :class:`.TimmTeacher` or a :class:`.ModuleTeacher` with the same
            classes in the same order. None: labels only.
        teacher_weight: The share of the teacher in the loss.
        init_cfg: See mmengine's ``BaseModule``.

    Raises:
        UserError: If the teacher has another number of classes, or no classification head.

    Shape:
        (B, C, H, W) to ``loss`` for ``mode='loss'``, to data samples with ``pred_scores`` (classes)
        and ``pred_label`` for ``mode='predict'``, and otherwise to logits (B, classes).
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        data_preprocessor: dict[str, Any],
        mixup: dict[str, Any] | None = None,
        teacher: dict[str, Any] | None = None,
        teacher_weight: float = 0.5,
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build(backbone)
        self.mixup = None
        if mixup is not None:
            require('timm')
            from timm.data import Mixup

            self.mixup = Mixup(**mixup, num_classes=self.backbone.num_classes)
        self.teacher, self.teacher_weight = None, teacher_weight
        self.description: dict[str, Any] = {}
        if teacher is not None:
            self.teacher = MODELS.build(teacher)
            classes, of_teacher = self.backbone.num_classes, self.teacher.count_classes()
            if of_teacher != classes:
                raise UserError(
                    f'teacher {self.teacher.name} has {of_teacher} classes, but '
                    f'model.backbone.num_classes={classes}: use a teacher of the same classes'
                )
            self.description = dict(teacher=self.teacher.description)

    def forward(
        self,
        inputs: Tensor,
        data_samples: Sequence[BaseDataElement] = (),
        mode: str = 'tensor',
    ) -> Any:
        if mode == 'loss':
            return self._loss(inputs, data_samples)
        logits = self.backbone(inputs)
        if mode == 'tensor':
            return logits
        for sample, scores in zip(data_samples, logits.float().softmax(-1), strict=True):
            sample.set_field(scores, 'pred_scores')
            sample.set_field(int(scores.argmax()), 'pred_label')
        return list(data_samples)

    def _loss(self, images: Tensor, samples: Sequence[BaseDataElement]) -> dict[str, Tensor]:
        self.image_size = min(images.shape[2:])
        targets = torch.tensor([sample.gt_label for sample in samples], device=images.device)
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        logits = self.backbone(images).float()
        loss = F.cross_entropy(logits, targets)
        if self.teacher is None:
            return dict(loss=loss)
        predicted = self.teacher.logits(images, self.data_preprocessor)
        of_teacher = F.cross_entropy(logits, predicted.argmax(-1))
        weight = self.teacher_weight
        return dict(loss_labels=(1 - weight) * loss, loss_teacher=weight * of_teacher)
