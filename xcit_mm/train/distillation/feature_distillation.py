"""Training of an XCiT on images without labels, with the features of a teacher as targets."""

from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...base.errors import UserError
from ...network.models.image_xcit import ImageFeatures
from ...network.weights.image_network import CLASS_ATTENTION
from .feature_losses import LOSSES, mean_cosine, of_same_size
from .teacher import Teacher

MIN_SIDE = 2  # of maps; a 1x1 map would resize to the same vector at all positions


@MODELS.register_module()
class FeatureDistillation(BaseModel):
    """An :class:`.ImageXCiT` that learns the features of a teacher.

    A 1x1 convolution projects the map of the student to the channels of the teacher, and a linear
    layer projects its class token. The dense loss compares the maps at each position, after
    resizing the smaller map to the larger one. The global loss compares the class token with the
    class token or the pooled features of the teacher.

    Args:
        backbone: The config of the ``ImageXCiT``.
        teacher: The config of a :class:`.TimmTeacher` or a :class:`.ModuleTeacher`.
        data_preprocessor: The config of an :class:`.ImagePreprocessor`.
        dense_loss: The loss between maps: 'cosine', 'smooth_l1' or None.
        global_loss: The loss between vectors: 'cosine', 'smooth_l1' or None. Without it, the class
            attention is not trained.
        dense_weight: The factor of the dense loss.
        global_weight: The factor of the global loss.
        init_cfg: See mmengine's ``BaseModule``.

    Shape:
        (B, C, H, W) to ``loss_dense``, ``loss_global``, ``dense_cosine`` and ``global_cosine``.
        In modes other than 'loss', (B, C, H, W) to the features of the student.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        teacher: dict[str, Any],
        data_preprocessor: dict[str, Any],
        dense_loss: str | None = 'cosine',
        global_loss: str | None = 'cosine',
        dense_weight: float = 1.0,
        global_weight: float = 1.0,
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.dense_loss, self.global_loss = dense_loss, global_loss
        self.dense_weight, self.global_weight = dense_weight, global_weight
        self.teacher: Teacher = MODELS.build(teacher)
        self.description = dict(teacher=self.teacher.description)
        self.backbone = MODELS.build(backbone)
        dim = self.backbone.cls_token.shape[-1]
        # The names must not end in "_head", which marks detectors and segmentors.
        if dense_loss is not None:
            self.dense_projection = nn.Conv2d(dim, self.teacher.map_channels, 1)
        if global_loss is not None:
            self.global_projection = nn.Linear(dim, self.teacher.vector_channels)
        unused = [self.backbone.head]
        if global_loss is None:
            unused += [self.backbone.norm, self.backbone.cls_attn_blocks]
            self.backbone.cls_token.requires_grad_(False)
            self.description[CLASS_ATTENTION] = False  # it keeps its random values
        for module in unused:  # DistributedDataParallel waits for all other gradients
            module.requires_grad_(False)

    def forward(
        self, inputs: Tensor, data_samples: list | None = None, mode: str = 'tensor'
    ) -> dict[str, Tensor] | ImageFeatures:
        if mode != 'loss':
            return self.backbone.features(inputs)
        self.image_size = min(inputs.shape[2:])
        target = self.teacher.features(inputs, self.data_preprocessor)
        features = self.backbone.features(inputs)
        results = {}
        if self.dense_loss is not None:
            student = self.dense_projection(features.map)
            if min(*student.shape[2:], *target.map.shape[2:]) < MIN_SIDE:
                raise UserError(
                    'the maps of student and teacher need 2 rows and columns: use larger images, a '
                    'larger model.teacher.size, or dense_loss=None'
                )
            maps = of_same_size(student.float(), target.map)
            student, teacher = (x.permute(0, 2, 3, 1) for x in maps)
            results |= self._compare('dense', student, teacher)
        if self.global_loss is not None:
            student = self.global_projection(features.token).float()
            results |= self._compare('global', student, target.vector)
        return results

    def _compare(self, name: str, student: Tensor, teacher: Tensor) -> dict[str, Tensor]:
        loss, weight = getattr(self, f'{name}_loss'), getattr(self, f'{name}_weight')
        with torch.autocast(student.device.type, enabled=False):
            return {
                f'loss_{name}': weight * LOSSES[loss](student, teacher),
                f'{name}_cosine': mean_cosine(student.detach(), teacher),
            }
