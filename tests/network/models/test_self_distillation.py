"""The loss and the head of DINO against lightly's and the formula; crops and the teacher."""

import copy

import numpy as np
import pytest
import torch
from helpers import DATA
from torch.nn import functional as F

from xcit_mm.network.models.self_distillation import (
    ProjectionHead,
    SelfDistillation,
    dino_loss,
    feature_spread,
)

# Computed with DINOLoss and DINOProjectionHead of lightly 1.6.0.
LIGHTLY = np.load(DATA / 'dino.npz')
TINY = dict(
    type='ImageXCiT',
    arch=dict(embed_dim=32, depth=4, num_heads=4, eta=1.0),
    patch_size=16,
)


def of_lightly(name):
    return torch.tensor(LIGHTLY[name])


def model(**arguments):
    torch.manual_seed(0)
    sizes = dict(outputs=24, hidden=16, bottleneck=8)
    preprocessor = dict(type='ImagePreprocessor', mean=[0.0], std=[1.0])
    return SelfDistillation(TINY, data_preprocessor=preprocessor, **(sizes | arguments))


def crops(images=3, num_local=2):
    return [torch.randn(images, 2, 3, 64, 64), torch.randn(images, num_local, 3, 32, 32)]


@pytest.mark.parametrize('step', range(3))
def test_loss_and_gradient_equal_those_of_lightly(step):
    student = of_lightly('student').float().requires_grad_()
    teacher, center = of_lightly('teacher').float() + step, of_lightly(f'center/{step}').float()
    loss, _ = dino_loss(student, teacher, center, 0.1, float(LIGHTLY[f'temp/{step}']))
    loss.backward()
    torch.testing.assert_close(loss, of_lightly(f'loss/{step}').float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        student.grad, of_lightly(f'grad/{step}').float(), rtol=1e-4, atol=1e-6
    )


def test_loss_equals_the_formula_in_float64():
    torch.manual_seed(1)
    student = torch.randn(5, 4, 9, dtype=torch.float64, requires_grad=True)
    teacher, center = torch.randn(2, 4, 9, dtype=torch.float64), torch.randn(9).double()
    loss, entropy = dino_loss(student, teacher, center, 0.1, 0.05)
    pairs, entropies = [], []
    for t in range(2):
        for b in range(4):
            p = torch.exp((teacher[t, b] - center) / 0.05)
            p = p / p.sum()
            entropies.append(-(p * p.log()).sum())
            for s in range(5):
                if s != t:
                    q = torch.exp(student[s, b] / 0.1)
                    pairs.append(-(p * (q / q.sum()).log()).sum())
    expected = torch.stack(pairs).mean()
    gradients = [torch.autograd.grad(value, student)[0] for value in (loss, expected)]
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(entropy, torch.stack(entropies).mean(), rtol=1e-12, atol=0)


def test_head_equals_the_head_of_lightly():
    head = ProjectionHead(dim=6, outputs=9, hidden=10, bottleneck=4).double()
    names = {f'mlp.{i}': f'layers.{i}' for i in (0, 2, 4)}
    state = {
        f'{ours}.{kind}': of_lightly(f'head/state/{theirs}.{kind}')
        for ours, theirs in names.items()
        for kind in ('weight', 'bias')
    }
    state['last_layer.weight'] = of_lightly('head/state/last_layer.weight_v')
    head.load_state_dict(state)
    x = of_lightly('head/x').requires_grad_()
    y = head(x)
    (y * of_lightly('head/cotangent')).sum().backward()
    gradient = of_lightly('head/grad/last_layer.weight_v')
    torch.testing.assert_close(y, of_lightly('head/y'), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(x.grad, of_lightly('head/grad'), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(head.last_layer.weight.grad, gradient, rtol=1e-10, atol=1e-12)


def test_center_moves_as_in_lightly():
    dino = model()
    dino.register_buffer('center', of_lightly('center/0').float())
    for step in range(3):
        dino._move_center((of_lightly('teacher') + step).float().flatten(0, 1))
        expected = of_lightly(f'center/{step + 1}').float()
        torch.testing.assert_close(dino.center, expected, rtol=1e-5, atol=1e-6)


def test_each_crop_gets_what_it_gets_alone():
    dino, groups = model().eval(), crops()
    dino.center.normal_()
    outputs = dino(groups, mode='loss')
    network = lambda part, x: part.head(part.backbone.features(x).token)  # noqa: E731
    alone = [group[:, i] for group in groups for i in range(group.shape[1])]
    student = torch.stack([torch.cat([network(dino.student, x[None]) for x in c]) for c in alone])
    teacher = torch.stack(
        [torch.cat([network(dino.teacher, x[None]) for x in c]) for c in alone[:2]]
    )
    center = torch.zeros(24)  # what it was, because the step has moved it
    fresh = copy.deepcopy(dino)
    fresh.center.copy_(center)
    outputs = fresh(groups, mode='loss')
    loss, entropy = dino_loss(student, teacher, center, 0.1, 0.04)
    torch.testing.assert_close(outputs['loss'], loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs['teacher_entropy'], entropy, rtol=1e-5, atol=1e-6)


def test_only_the_student_gets_gradients_and_the_teacher_follows_it():
    dino = model(momentum=0.9).train()
    dino.set_progress(0.0)
    dino(crops(), mode='loss')['loss'].backward()
    assert all(p.grad is None for p in dino.teacher.parameters())
    without = [n for n, p in dino.student.named_parameters() if p.grad is None]
    assert without == []
    with torch.no_grad():
        for parameter in dino.student.parameters():
            parameter.add_(1)
    before = [p.clone() for p in dino.teacher.parameters()]
    dino.update_teacher()
    for old, new in zip(before, dino.teacher.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.1, rtol=1e-4, atol=1e-5)


def test_schedules_end_where_the_recipe_says():
    dino = model(frozen_share=0.01)
    places = []
    for share in (0.0, 0.05, 0.1, 0.5, 1.0):
        dino.set_progress(share)
        places.append((dino.teacher_temperature, dino.momentum, dino.is_last_layer_frozen))
    temperatures, momenta, frozen = zip(*places, strict=True)
    assert temperatures == pytest.approx((0.04, 0.055, 0.07, 0.07, 0.07))
    assert momenta == pytest.approx((0.996, 0.99602, 0.9961, 0.998, 1.0), abs=1e-4)
    assert frozen == (True, False, False, False, False)


def test_spread_tells_collapse_from_learning():
    assert feature_spread(torch.ones(8, 32)) == 0
    assert feature_spread(torch.randn(512, 64)) == pytest.approx(1, abs=0.05)
    assert feature_spread(3 * F.normalize(torch.randn(512, 64), dim=-1)) == pytest.approx(
        1, abs=0.05
    )


def test_the_head_and_the_loss_are_not_rounded_under_autocast():
    dino, groups = model().train(), crops()
    states = copy.deepcopy(dino.state_dict())
    with torch.autocast('cpu', torch.bfloat16):
        head = dino.student.head(torch.randn(2, 32))
        narrow = dino(groups, mode='loss')['loss']
    dino.load_state_dict(states)
    assert head.dtype == narrow.dtype == torch.float32
    student, teacher = torch.randn(4, 3, 24), torch.randn(2, 3, 24)
    expected, _ = dino_loss(student, teacher, torch.zeros(24), 0.1, 0.04)
    with torch.autocast('cpu', torch.bfloat16):
        loss, _ = dino_loss(student, teacher, torch.zeros(24), 0.1, 0.04)
    assert loss == expected


def test_a_head_of_classes_gets_no_gradient():
    torch.manual_seed(0)
    preprocessor = dict(type='ImagePreprocessor', mean=[0.0], std=[1.0])
    dino = SelfDistillation(TINY | dict(num_classes=3), 24, 16, 8, data_preprocessor=preprocessor)
    dino(crops(), mode='loss')['loss'].backward()
    trained = [p for p in dino.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in trained)
