"""DINO: self-distillation without labels, on image crops with any number of channels.

Caron et al., "Emerging properties in self-supervised vision transformers" (arXiv 2104.14294).
The XCiT models of table 3 were trained with this method. Letters in shapes: B images, K outputs of
the head.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn import functional as F

from ..xcit import init_linear

NUM_GLOBAL = 2  # number of crops for the teacher
# As in the paper.
STUDENT_TEMPERATURE = 0.1  # divides the outputs of the student
WARMUP_SHARE = 0.1  # of the training, in which the temperature of the teacher rises
CENTER_MOMENTUM = 0.9  # of the center of the teacher's outputs


class ProjectionHead(nn.Module):
    """An MLP, L2 normalization, and a linear layer whose rows have length 1.

    Shape:
        (B, ``dim``) to (B, ``outputs``).
    """

    def __init__(self, dim: int, outputs: int, hidden: int, bottleneck: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        self.mlp.apply(init_linear)
        self.last_layer = nn.Linear(bottleneck, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # At first, the cosines of different images differ by less than the resolution of bfloat16.
        with torch.autocast(x.device.type, enabled=False):
            x = F.normalize(self.mlp(x.to(self.last_layer.weight.dtype)), dim=-1)
            return F.linear(x, F.normalize(self.last_layer.weight, dim=-1))


def dino_loss(
    student: Tensor,
    teacher: Tensor,
    center: Tensor,
    student_temperature: float,
    teacher_temperature: float,
) -> tuple[Tensor, Tensor]:
    """Compute DINO's loss and the entropy of the teacher (arXiv 2104.14294, equations 1 to 3).

    The loss is the cross entropy between the centered and sharpened distribution of the teacher for
    a global crop and the distribution of the student for every other crop, averaged over all pairs
    of crops and over the images.

    Shape:
        student: (S, B, K), the outputs for all crops, the global ones first. teacher: (2, B, K).
        center: (K,). Output: two scalars, in nats.
    """
    predicted = F.log_softmax(student / student_temperature, dim=-1)
    targets = F.softmax((teacher - center) / teacher_temperature, dim=-1).detach()
    with torch.autocast(student.device.type, enabled=False):
        entropies = torch.einsum('tbk,sbk->ts', targets, -predicted) / student.shape[1]
    own = torch.eye(*entropies.shape, dtype=torch.bool, device=entropies.device)
    loss = entropies.masked_fill(own, 0).sum() / (~own).sum()
    return loss, torch.special.entr(targets).sum(-1).mean()


def feature_spread(features: Tensor) -> Tensor:
    """Measure how different the features (B, C) of images are.

    The spread is the mean standard deviation of the L2-normalized features over the images, times
    the square root of C. It is 0 if all images have the same features, and about 1 if the features
    are spread over the sphere.
    """
    unit = F.normalize(features.float(), dim=-1)
    return unit.std(0, correction=0).mean() * math.sqrt(features.shape[1])


@MODELS.register_module()
class SelfDistillation(BaseModel):
    """A student that learns the outputs of a teacher, the average of earlier students.

    Both networks are an ``ImageXCiT`` with a projection head. :class:`.MomentumTeacherHook` updates
    the teacher after each step. The teacher is the result of the training, as in the authors'
    release.

    Args:
        backbone: Config of the student's ``ImageXCiT``.
        outputs: K, the number of outputs of the heads: 65,536 for ImageNet, far fewer for small
            datasets.
        hidden: Width of the MLP of the heads.
        bottleneck: Width of the input of the last layer.
        teacher_temperature: The first and the last temperature of the teacher, which rises in the
            first tenth of the training.
        frozen_share: Share of the training in which the last layer of the student does not change.
        momentum: First momentum of the teacher, which rises to 1 along a cosine.
        data_preprocessor: Config of an :class:`.ImagePreprocessor`.

    Shape:
        For ``mode='loss'``, a list of crops (B, n, C, h, w); the first group holds the two global
        crops. For ``mode='predict'``, images (B, C, H, W).
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        outputs: int = 65536,
        hidden: int = 2048,
        bottleneck: int = 256,
        teacher_temperature: tuple[float, float] = (0.04, 0.07),
        frozen_share: float = 1 / 300,
        momentum: float = 0.996,
        data_preprocessor: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(data_preprocessor)
        network = MODELS.build(backbone)
        dim = network.norm.weight.numel()
        head = ProjectionHead(dim, outputs, hidden, bottleneck)
        self.student = nn.ModuleDict(dict(backbone=network, head=head))
        # The teacher has no stochastic depth.
        teacher = MODELS.build({**backbone, 'drop_path_rate': 0.0, 'init_cfg': None})
        self.teacher = nn.ModuleDict(dict(backbone=teacher, head=copy.deepcopy(head)))
        self.teacher.requires_grad_(False)
        network.head.requires_grad_(False)  # of classes: DistributedDataParallel would wait for it
        self.teacher.load_state_dict(self.student.state_dict())
        self.register_buffer('center', torch.zeros(outputs))
        self.teacher_temperatures, self.first_momentum = teacher_temperature, momentum
        self.frozen_share = frozen_share
        self.set_progress(0.0)

    @property
    def backbone(self) -> nn.Module:
        """The network that is the result of the training: the backbone of the teacher."""
        return self.teacher.backbone

    def init_weights(self) -> None:
        """Load the weights named by ``init_cfg`` of the backbone into student and teacher."""
        self.student.backbone.init_weights()
        self.teacher.load_state_dict(self.student.state_dict())

    def set_progress(self, share: float) -> None:
        """Set the temperature and the momentum for the completed share of the training."""
        first, last = self.teacher_temperatures
        self.teacher_temperature = first + (last - first) * min(1.0, share / WARMUP_SHARE)
        self.momentum = 1 - (1 - self.first_momentum) * (math.cos(math.pi * share) + 1) / 2
        self.is_last_layer_frozen = share < self.frozen_share

    @torch.no_grad()
    def update_teacher(self) -> None:
        """Move the parameters of the teacher toward the student.

        The teacher keeps its own BatchNorm statistics, because they belong to its own crops.
        """
        averages, values = list(self.teacher.parameters()), list(self.student.parameters())
        torch._foreach_lerp_(averages, values, 1 - self.momentum)

    def forward(
        self,
        inputs: Tensor | Sequence[Tensor],
        data_samples: Sequence[BaseDataElement] = (),
        mode: str = 'predict',
    ) -> Any:
        if mode == 'loss':
            return self._loss(inputs)
        token = self.backbone.features(inputs).token
        if mode == 'tensor':
            return token
        for sample, features in zip(data_samples, token, strict=True):
            sample.set_field(features, 'features')
        return list(data_samples)

    def _loss(self, groups: Sequence[Tensor]) -> dict[str, Tensor]:
        self.image_size = groups[0].shape[-1]
        features = [self.student.backbone.features(_crops(group)).token for group in groups]
        outputs = [
            self.student.head(f).unflatten(0, (-1, len(g)))
            for f, g in zip(features, groups, strict=True)
        ]
        with torch.no_grad():
            of_teacher = self.teacher.head(self.teacher.backbone.features(_crops(groups[0])).token)
        targets = of_teacher.unflatten(0, (NUM_GLOBAL, -1))
        temperatures = STUDENT_TEMPERATURE, self.teacher_temperature
        loss, entropy = dino_loss(torch.cat(outputs), targets, self.center, *temperatures)
        self._move_center(of_teacher)
        spread = feature_spread(features[0].detach().unflatten(0, (NUM_GLOBAL, -1))[0])
        return dict(loss=loss, teacher_entropy=entropy, feature_spread=spread)

    @torch.no_grad()
    def _move_center(self, outputs: Tensor) -> None:
        """Move the center toward the mean of the teacher's outputs over all processes."""
        mean = outputs.mean(0)
        all_reduce(mean, 'mean')
        self.center.lerp_(mean, 1 - CENTER_MOMENTUM)


def _crops(group: Tensor) -> Tensor:
    """Flatten a group of crops (B, n, C, h, w) to (n * B, C, h, w), ordered by crop."""
    return group.transpose(0, 1).flatten(0, 1)
