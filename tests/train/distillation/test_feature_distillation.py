"""The losses of a distillation, and what its model holds and refuses."""

from copy import deepcopy

import pytest
import torch
from helpers.processes import in_processes
from helpers.small_xcit import SMALL
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODELS
from torch import nn
from torch.nn import functional as F

from xcit_mm.network.models import image_preprocessor  # noqa: F401  registered
from xcit_mm.train.distillation import feature_distillation, module_teacher  # noqa: F401  registered
from xcit_mm.train.distillation.feature_losses import LOSSES, of_same_size

SCALE = dict(mean=[100.0], std=[50.0])


@MODELS.register_module()
class Strided(nn.Module):
    """A teacher of another width and another stride than the student."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 24, stride, stride)

    def forward(self, x):
        return self.conv(x)


@pytest.fixture
def build(tmp_path):
    def build_model(stride: int = 8, in_channels: int = 3, channels=None, **arguments):
        torch.manual_seed(0)
        module, path = dict(type='Strided', stride=stride), tmp_path / 'teacher.pth'
        torch.save(MODELS.build(module).state_dict(), path)
        teacher = dict(type='ModuleTeacher', module=module, checkpoint=str(path), **SCALE)
        return MODELS.build(
            dict(
                type='FeatureDistillation',
                data_preprocessor=dict(type='ImagePreprocessor', **SCALE),
                backbone=dict(type='ImageXCiT', arch=SMALL, patch_size=16, in_channels=in_channels),
                teacher=teacher | dict(channels=channels),
                **arguments,
            )
        )

    return build_model


def plain(kind: str, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The losses as they are in the papers, for features (N, C)."""
    if kind == 'cosine':
        norms = student.square().sum(1).sqrt() * teacher.square().sum(1).sqrt()
        return (1 - (student * teacher).sum(1) / norms).sum() / len(student)
    mean = teacher.mean(1, keepdim=True)
    variance = (teacher - mean).square().mean(1, keepdim=True)
    error = (student - (teacher - mean) / (variance + 1e-5).sqrt()).abs()
    return torch.where(error < 2, error.square() / 4, error - 1).mean()


@pytest.mark.parametrize('kind', LOSSES)
def test_losses_and_gradients_are_those_of_the_formula_in_float64(kind):
    torch.manual_seed(0)
    student = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    teacher = 5 * torch.randn(2, 3, 5, 7, dtype=torch.float64) + 3
    loss, expected = (
        LOSSES[kind](student, teacher),
        plain(kind, student.flatten(0, 2), teacher.flatten(0, 2)),
    )
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(value, student)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 1e-3


@pytest.mark.parametrize('stride', [8, 32])
@pytest.mark.parametrize('kind', LOSSES)
def test_the_model_compares_maps_and_vectors_with_its_weights(build, kind, stride):
    model = build(
        stride, dense_loss=kind, global_loss=kind, dense_weight=0.5, global_weight=3.0
    ).eval()
    x = torch.randn(2, 3, 64, 96)
    losses = model(x, mode='loss')
    with torch.no_grad():
        found = model.backbone.features(x)
        of_teacher = model.teacher.network(x)
        student = model.dense_projection(found.map)
    size = (8, 12) if stride == 8 else (4, 6)
    maps = [F.interpolate(m, size, mode='bilinear') for m in (student, of_teacher)]
    features = [m.permute(0, 2, 3, 1).flatten(0, 2) for m in maps]
    vectors = model.global_projection(found.token), of_teacher.mean((2, 3))
    close = dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses['loss_dense'], 0.5 * plain(kind, *features), **close)
    torch.testing.assert_close(losses['loss_global'], 3 * plain(kind, *vectors), **close)
    expected = 1 - plain('cosine', *features), 1 - plain('cosine', *vectors)
    for name, value in zip(('dense_cosine', 'global_cosine'), expected, strict=True):
        torch.testing.assert_close(losses[name], value.detach(), **close)
        assert not losses[name].requires_grad
    torch.testing.assert_close(model(x).token, found.token, **close)


def test_all_of_the_student_and_nothing_of_the_teacher_is_trained(build):
    for absent, unused in (
        ('dense_loss', ()),
        ('global_loss', ('cls_token', 'cls_attn', 'norm.')),
        (None, ()),
    ):
        model = build(**({absent: None} if absent else {}))
        losses = model(torch.randn(2, 3, 64, 64), mode='loss')
        assert len(losses) == (4 if absent is None else 2)
        sum(value for name, value in losses.items() if 'loss' in name).backward()
        for name, p in model.named_parameters():
            is_unused = name.removeprefix('backbone.').startswith(unused)
            assert p.requires_grad != is_unused, name
            assert (p.grad is None) == is_unused, name
        assert not any(p.requires_grad for p in model.teacher.network.parameters())
        model.train()
        assert not model.teacher.network.training
        held = [*model.state_dict(), *(name for name, _ in model.named_parameters())]
        assert not any('teacher' in name for name in held)
        assert deepcopy(model).teacher is model.teacher


def test_two_processes_have_the_gradients_of_one(build, tmp_path):
    x = torch.randn(4, 3, 64, 64)

    def gradients(model, inputs) -> list[torch.Tensor]:
        losses = model(inputs, mode='loss')
        (losses['loss_dense'] + losses['loss_global']).backward()
        return [p.grad for p in model.parameters() if p.requires_grad]

    expected = gradients(build().eval(), x)  # BatchNorm would use the statistics of its batch

    model = build().eval()  # here, because it writes and reads the file of the teacher

    def in_process(rank: int) -> None:
        found = gradients(MMDistributedDataParallel(model), x[2 * rank : 2 * rank + 2])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)

    in_processes(2, in_process, tmp_path)


def test_the_smaller_map_is_resized_to_the_larger_one():
    small, large = torch.rand(1, 4, 2, 6), torch.rand(1, 4, 5, 3)
    student, teacher = of_same_size(small, large)
    for x, source in ((student, small), (teacher, large)):
        expected = F.interpolate(source, (5, 6), mode='bilinear', align_corners=False)
        assert torch.equal(x, expected)
    assert of_same_size(small, small)[0] is small
