"""Parameters of equal options in one group of the optimizer, in training and in a resume."""

from copy import deepcopy

import pytest
import torch
from helpers import ROOT
from helpers.resumed_runs import assert_same_run, hooks, interrupted, resumed
from helpers.segmentors import build
from helpers.toy import toy_runner
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.structures import PixelData
from torch import nn

from xcit_mm import UserError
from xcit_mm.config.adapt import adapt_for_training
from xcit_mm.config.load import load_config

MERGED, SEPARATE = 'MergedGroupsConstructor', 'DefaultOptimWrapperConstructor'
KEYS = {
    'bias': dict(lr_mult=0.5),
    'norm': dict(decay_mult=0.0),
    'head.weight': dict(lr_mult=2, betas=(0.5, 0.9)),
}


class Stack(nn.Module):
    """Layers whose options alternate, as many as in a small backbone."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(12):
            self.add_module(f'layer{i}', nn.Linear(7, 7))
            self.add_module(f'norm{i}', nn.LayerNorm(7))
        self.head = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def wrapped(model: nn.Module, constructor: str, optimizer: dict | None = None, **paramwise):
    """Build the optimizer of a model, which clips gradients."""
    cfg = dict(type='AdamW', lr=1e-2, weight_decay=0.05) | (optimizer or {})
    return build_optim_wrapper(
        model,
        dict(
            optimizer=cfg,
            clip_grad=dict(max_norm=0.01),
            constructor=constructor,
            paramwise_cfg=dict(custom_keys=KEYS) | paramwise,
        ),
    )


def by_name(wrapper: OptimWrapper, model: nn.Module) -> dict[str, dict]:
    """Return the options of each parameter."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: {k: v for k, v in group.items() if k not in ('params', 'param_names')}
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }


def schedules(wrapper: OptimWrapper) -> list:
    cfgs = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=3),
        dict(type='CosineAnnealingLR', by_epoch=False, begin=3, end=9, eta_min_ratio=0.01),
        dict(
            type='CosineAnnealingParamScheduler',
            param_name='weight_decay',
            by_epoch=False,
            eta_min_ratio=3,
            end=9,
        ),
    ]
    return [PARAM_SCHEDULERS.build(cfg, default_args=dict(optimizer=wrapper)) for cfg in cfgs]


def trained(model: nn.Module, wrapper: OptimWrapper, losses, steps: range) -> list[float]:
    """Train with schedules, and return what is logged in each step."""
    schedulers, logged = schedules(wrapper), []
    for step in steps:
        torch.manual_seed(step)
        loss, _ = losses()
        wrapper.update_params(loss)
        rates = wrapper.get_lr()
        norm = wrapper.message_hub.get_scalar('train/grad_norm').current()
        logged += [float(loss.detach()), norm, rates['lr'][0], *rates['base_lr']]
        for scheduler in schedulers:
            scheduler.step()
    return logged


def test_groups_have_the_options_of_mmengine_in_the_order_of_the_model(caplog):
    model = Stack()
    model.norm3.weight.requires_grad_(False)
    merged, separate = (wrapped(model, kind) for kind in (MERGED, SEPARATE))
    assert by_name(merged, model) == by_name(separate, model)
    first = [group['param_names'][0] for group in merged.optimizer.param_groups]
    assert first == ['layer0.weight', 'layer0.bias', 'norm0.weight', 'head.weight']
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in merged.optimizer.param_groups:
        assert group['param_names'] == [names[parameter] for parameter in group['params']]
    assert len(separate.optimizer.param_groups) == 49


@pytest.mark.parametrize('fused', [False, True])
def test_merged_groups_give_the_weights_of_separate_ones(fused):
    """Bit for bit, with clipped gradients and schedules, which mmengine logs as before."""
    results = []
    for constructor in (MERGED, SEPARATE):
        torch.manual_seed(0)
        model = Stack()
        wrapper = wrapped(model, constructor, dict(fused=fused))
        logged = trained(
            model, wrapper, lambda m=model: (m(torch.randn(5, 7)).square().mean(), {}), range(9)
        )
        results.append((logged, by_name(wrapper, model), model.state_dict()))
    (logged, options, weights), (expected, expected_options, expected_weights) = results
    assert logged == expected and options == expected_options
    assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())


def test_a_segmentor_trains_as_with_separate_groups():
    torch.manual_seed(0)
    initial = build('sem_fpn_xcit_t12_16_80k')
    initial.data_preprocessor.size = (96, 96)  # instead of the crops of the config
    from mmseg.structures import SegDataSample

    labels = PixelData(data=torch.randint(0, 150, (1, 96, 96)))
    samples = [SegDataSample(gt_sem_seg=labels, metainfo=dict(img_shape=(96, 96)))] * 2
    data = dict(inputs=[*torch.randint(0, 256, (2, 3, 96, 96))], data_samples=samples)
    results = []
    for constructor in (MERGED, SEPARATE):
        model = deepcopy(initial).train()
        batch = model.data_preprocessor(deepcopy(data), training=True)

        def losses(model=model, batch=batch):
            return model.parse_losses(model(**deepcopy(batch), mode='loss'))

        torch.manual_seed(0)
        wrapper = wrapped(model, constructor, dict(fused=True), norm_decay_mult=0)
        results.append((trained(model, wrapper, losses, range(3)), model.state_dict()))
    (logged, weights), (expected, expected_weights) = results
    assert logged == expected
    assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())


GROUPED = {
    'param_scheduler': [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6),
        dict(
            type='CosineAnnealingParamScheduler',
            param_name='weight_decay',
            by_epoch=False,
            eta_min_ratio=3,
            end=8,
        ),
    ],
    'optim_wrapper.paramwise_cfg': dict(custom_keys={'bias': dict(lr_mult=0.5)}),
    'optim_wrapper.clip_grad': dict(max_norm=0.5),
    'default_hooks.ema': dict(type='EMAHook', momentum=0.1),
}
ONE_GROUP = GROUPED | {'optim_wrapper.paramwise_cfg': dict(custom_keys={'none': dict(lr_mult=2)})}


def with_constructor(name: str, options: dict) -> dict:
    return options | {'optim_wrapper.constructor': name}


@pytest.mark.parametrize(
    ('options', 'before', 'after'),
    [(GROUPED, SEPARATE, MERGED), (GROUPED, MERGED, SEPARATE), (ONE_GROUP, SEPARATE, MERGED)],
)
def test_a_run_resumes_exactly_with_other_groups(tmp_path, capsys, options, before, after):
    whole, cut = tmp_path / 'whole', tmp_path / 'cut'
    toy_runner(whole, custom_hooks=hooks(), **with_constructor(after, options)).train()
    interrupted(cut, 4, **with_constructor(before, options))
    resumed(cut, **with_constructor(after, options))
    assert 'no effect' not in capsys.readouterr().out
    assert_same_run(whole, cut, 8)


def test_other_options_of_one_group_are_refused(tmp_path):
    interrupted(tmp_path, 2, **with_constructor(SEPARATE, GROUPED))
    paramwise_cfg = dict(custom_keys={'none': dict(lr_mult=2)})
    other = GROUPED | {'optim_wrapper.paramwise_cfg': paramwise_cfg}
    with pytest.raises(UserError) as error:
        resumed(tmp_path, **with_constructor(MERGED, other))
    assert 'norm.weight and norm.bias are in one group of the optimizer' in str(error.value)
    assert 'but differ in lr=' in str(error.value)
    assert 'changed since: optim_wrapper.paramwise_cfg.custom_keys.bias' in str(error.value)


def test_a_run_without_fused_kernels_is_resumed_with_them(tmp_path, capsys):
    interrupted(tmp_path, 2, **with_constructor(MERGED, GROUPED))
    fused = GROUPED | {'optim_wrapper.optimizer.fused': True}
    runner = resumed(tmp_path, **with_constructor(MERGED, fused))
    assert [group['fused'] for group in runner.optim_wrapper.optimizer.param_groups] == [True, True]
    assert 'fused' not in capsys.readouterr().out


@pytest.mark.parametrize(
    ('constructor', 'paramwise_cfg', 'named'),
    [
        (None, dict(norm_decay_mult=0), True),
        (None, None, False),
        (SEPARATE, dict(norm_decay_mult=0), False),
    ],
)
def test_groups_of_other_configs_are_merged_unless_they_name_a_constructor(
    constructor, paramwise_cfg, named
):
    cfg = load_config(ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py')
    cfg.optim_wrapper |= dict(constructor=constructor, paramwise_cfg=paramwise_cfg)
    notes = adapt_for_training(cfg)
    assert cfg.optim_wrapper.constructor == (MERGED if named else constructor)
    assert any('constructor' in note for note in notes) == named


@pytest.mark.parametrize(('kind', 'named'), [('RAdam', True), ('SGD', False), (None, False)])
def test_optimizers_without_fused_kernels_do_not_get_the_option(kind, named):
    options = {'optim_wrapper.optimizer.type': kind} if kind else {}
    if kind == 'SGD':
        options['optim_wrapper.optimizer.betas'] = None
    cfg = load_config(ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py', options)
    notes = adapt_for_training(cfg)
    assert ('fused' in cfg.optim_wrapper.optimizer) != named
    assert any('fused is unset: RAdam has' in note for note in notes) == named
    if kind == 'RAdam':
        wrapper = build_optim_wrapper(Stack(), cfg.optim_wrapper)
        assert type(wrapper.optimizer).__name__ == kind


def test_a_shared_layer_is_updated_once():
    model = Stack()
    model.other = nn.Sequential(model.layer1)
    parameters = [p for g in wrapped(model, MERGED).optimizer.param_groups for p in g['params']]
    assert len(parameters) == len({*parameters}) == len([*model.parameters()])
