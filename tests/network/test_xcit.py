"""The backbone against the authors' code and timm, and the promises of its arguments."""

import copy
import importlib

import pytest
import timm
import torch
from helpers import (
    assert_same_gradients,
    held_bytes,
    randomize,
    relative_error,
    rounding_error,
)
from helpers.small_xcit import SMALL, assert_same_maps, small_xcit
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from xcit_mm import XCiT, accelerate
from xcit_mm.network.archs import released_name
from xcit_mm.network.layers import XCA, DropPath, XCABlock

TOLERANCE = 1e-5
MOMENTUM = 0.1  # of the authors' BatchNorm
GOLDEN = {'xcit_p16': 16, 'xcit_p8': 8, 'xcit_p16_odd': 16}


def golden_model(arrays: dict, patch_size: int) -> XCiT:
    """Return the authors' model before its training step.

    The archives were written after that step: `state/` holds the running statistics that it left
    (the same arrays as `stats/`). Undo it by r = (r' - m * b) / (1 - m), where b are the statistics
    of the batch: a step with the momentum -m / (1 - m). The outputs in evaluation mode, which
    depend on every r, show that b is right.
    """
    model = small_xcit(patch_size)
    state = {k.removeprefix('state/'): v for k, v in arrays.items() if k.startswith('state/')}
    model.load_state_dict(state)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = -MOMENTUM / (1 - MOMENTUM)
    model.train()(arrays['input'])
    for norm in norms:
        norm.momentum = MOMENTUM
    return model


@pytest.mark.parametrize(('name', 'patch_size'), GOLDEN.items())
def test_evaluation_and_a_training_step_equal_the_authors(golden, name, patch_size):
    arrays = golden(name)
    model = golden_model(arrays, patch_size).eval()
    assert_same_maps(model(arrays['input']), [arrays[f'eval/{i}'] for i in range(4)])

    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    image = arrays['input'].requires_grad_()
    maps = model(image)
    assert_same_maps(maps, [arrays[f'train/{i}'] for i in range(4)])
    sum((value * arrays[f'cotangent/{i}']).sum() for i, value in enumerate(maps)).backward()

    gradients = {name: p.grad for name, p in model.named_parameters()} | {'input': image.grad}
    assert {f'grad/{name}' for name in gradients} == {k for k in arrays if k.startswith('grad/')}
    for name, gradient in gradients.items():
        reference = arrays[f'grad/{name}']
        if name == 'fpn1.0.bias' and patch_size == 16:
            # BatchNorm subtracts this bias again: the gradient is 0 but for rounding.
            scale = arrays['grad/fpn1.0.weight'].norm()
            assert gradient.norm() <= TOLERANCE * scale
            assert reference.norm() <= TOLERANCE * scale
        else:
            assert relative_error(gradient, reference) <= TOLERANCE, name

    state = model.state_dict()
    statistics = [k.removeprefix('stats/') for k in arrays if k.startswith('stats/')]
    assert statistics
    for name in statistics:
        assert relative_error(before[name], arrays[f'stats/{name}']) > 1e-2, name
        assert relative_error(state[name], arrays[f'stats/{name}']) <= TOLERANCE, name


@pytest.mark.parametrize(
    'arch, patch_size',
    [
        *((arch, 16) for arch in ('n12', 't12', 't24', 's12')),
        *((arch, 8) for arch in ('n12', 't12')),
        *(pytest.param(arch, 16, marks=pytest.mark.slow) for arch in ('s24', 'm24', 'l24')),
    ],
)
def test_every_variant_equals_timm_with_its_weights(arch, patch_size):
    with torch.device('meta'):  # skips the slow initialization
        reference = timm.create_model(released_name(arch, patch_size))
        model = XCiT(arch, patch_size)
    # Only the trunk is compared.
    reference.cls_token = reference.norm = reference.cls_attn_blocks = reference.head = None
    reference.to_empty(device='cpu').eval()
    model.to_empty(device='cpu').eval()
    for module in (reference, model.fpn1, model.fpn2):
        for parameter in module.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_uniform_(parameter, a=5**0.5)
        randomize(module)
    state = {k.replace('pos_embed.', 'pos_embeder.'): v for k, v in reference.state_dict().items()}
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert not unexpected and all(name.startswith('fpn') for name in missing)

    # Rounding decides which of two nearly equal values max-pooling takes and gives a gradient.
    model.fpn3 = model.fpn4 = nn.Identity()
    # Two images: for one, PyTorch's BatchNorm gives timm's stem wrong gradients on CPUs.
    image = torch.randn(2, 3, 64, 96)
    maps, levels = model(image), (model.fpn1, model.fpn2, model.fpn3, model.fpn4)
    layers = dict(indices=list(model.out_indices), intermediates_only=True)
    timm_maps = reference.forward_intermediates(image, **layers)
    expected = [level(x) for level, x in zip(levels, timm_maps, strict=True)]
    assert_same_maps(maps, expected)
    cotangents = [torch.randn_like(m) for m in maps]
    parameters = dict(model.named_parameters())
    names = [n.replace('pos_embed.', 'pos_embeder.') for n, _ in reference.named_parameters()]
    gradients = torch.autograd.grad(maps, [parameters[n] for n in names], cotangents)
    wanted = torch.autograd.grad(expected, list(reference.parameters()), cotangents)
    for name, value, reference_value in zip(names, gradients, wanted, strict=True):
        assert relative_error(value, reference_value) <= TOLERANCE, name


@pytest.mark.parametrize('size', [64, 352])  # 16 tokens: direct form; 484: Gram form
def test_an_accelerated_model_of_timm_keeps_outputs_gradients_and_parameters(size):
    model, image = timm.create_model('xcit_nano_12_p16_224').eval(), torch.randn(2, 3, size, size)
    randomize(model)
    names, params = zip(*model.named_parameters(), strict=True)
    before = model(image)
    expected = torch.autograd.grad(before.square().sum(), params)
    assert accelerate(model) is model
    assert sum(isinstance(m, XCA) for m in model.modules()) == 12
    after = model(image)
    assert relative_error(after, before) <= 1e-5
    gradients = torch.autograd.grad(after.square().sum(), params)
    assert_same_gradients(names, gradients, expected, 2e-5)
    for (name, parameter), old_name, old in zip(
        model.named_parameters(), names, params, strict=True
    ):
        assert name == old_name and parameter is old


@pytest.mark.parametrize('rate', ['attn_drop_rate', 'proj_drop_rate'])
def test_a_model_without_the_attention_of_timm_or_with_dropout_is_not_accelerated(rate):
    with torch.device('meta'):
        dropping = timm.create_model('xcit_nano_12_p16_224', **{rate: 0.1})
    for model in (dropping, nn.Linear(2, 2)):
        with pytest.raises(ValueError, match=r'has no attention of timm.s XCiT without dropout'):
            accelerate(model)


def test_layers_behind_the_last_output_are_not_computed_and_not_trained():
    model = XCiT(SMALL | dict(depth=6), 16, out_indices=(0, 1, 2, 3))
    calls = []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=i: calls.append(i))
    sum(m.sum() for m in model(torch.randn(2, 3, 64, 64))).backward()
    assert calls == [0, 1, 2, 3]
    for name, parameter in model.named_parameters():
        unused = name.startswith(('blocks.4.', 'blocks.5.'))
        assert parameter.requires_grad != unused
        assert (parameter.grad is None) == unused


@pytest.mark.parametrize('patch_size', [16, 8, 4])
def test_images_of_any_size_give_strides_4_to_32_if_they_are_large_enough(patch_size):
    model, smallest = small_xcit(patch_size).eval(), 33 - patch_size
    for size in ((75, 110), (33, 200), (smallest, smallest)):
        tokens = [-(-side // patch_size) for side in size]
        for stride, value in zip((4, 8, 16, 32), model(torch.randn(1, 3, *size)), strict=True):
            assert value.shape == (1, 32, *(t * patch_size // stride for t in tokens))
            assert value.isfinite().all()
    with pytest.raises(ValueError, match=f'at least {smallest}'):
        model(torch.randn(1, 3, smallest - 1, 64))


def test_out_indices_layer_scale_and_drop_path_have_the_published_values_and_are_used():
    with torch.device('meta'):
        assert XCiT('n12', 16).out_indices == (3, 5, 7, 11)
        model = XCiT('l24', 8)
    assert model.out_indices == (7, 11, 15, 23)
    assert {m.p for m in model.modules() if isinstance(m, DropPath)} == {0.3}
    for block in XCiT(SMALL | dict(eta=1e-5), 16, out_indices=(0, 1, 2, 3)).blocks:
        assert all((gamma == 1e-5).all() for gamma in (block.gamma1, block.gamma2, block.gamma3))
    model, image = small_xcit(drop_path_rate=0.5), torch.randn(8, 3, 64, 64)
    assert not torch.equal(model(image)[2], model(image)[2])
    model.eval()
    assert torch.equal(model(image)[2], model(image)[2])


@pytest.mark.parametrize('with_cp, bound', [(False, 14), (True, 5)])
def test_what_is_kept_for_the_backward_pass(with_cp, bound):
    """Floats per token, channel and layer of n12/8 at 512x512; timm's XCiT keeps 27.7.

    With ``with_cp``, those that the backward pass recomputes for a layer stay within the bound.
    """
    model = XCiT('n12', 8, drop_path_rate=0.0, with_cp=with_cp)
    image = torch.randn(1, 3, 512, 512)
    unit = 64 * 64 * 128 * 12 * 4
    kept = held_bytes(lambda: model(image)) / unit
    assert 1 < kept + with_cp * 14 / 12 <= bound


def test_a_single_image_gets_the_gradients_of_float64():
    """PyTorch's BatchNorm on CPUs takes the gradient of one image's tokens for NCHW."""
    model = small_xcit()
    randomize(model)
    image = torch.randn(1, 3, 64, 96)
    cotangents = [torch.randn_like(m) for m in model(image)]
    twin = copy.deepcopy(model).double()  # gets the image twice: the same statistics
    torch.autograd.backward(model(image), cotangents)
    twice = [t.double().repeat(2, 1, 1, 1) for t in (image, *cotangents)]
    torch.autograd.backward(twin(twice[0]), twice[1:])
    gradients = {name: p.grad for name, p in model.named_parameters()}
    expected = {name: p.grad / 2 for name, p in twin.named_parameters()}
    # BatchNorm subtracts this bias again: the gradient is 0 but for rounding.
    bias, scale = 'fpn1.0.bias', expected['fpn1.0.weight'].norm()
    assert expected.pop(bias).norm() <= 1e-12 * scale
    assert gradients.pop(bias).norm() <= TOLERANCE * scale
    assert_same_gradients(gradients.keys(), gradients.values(), expected.values(), TOLERANCE)


def in_layers(model: XCiT) -> int:
    """How often results are rounded: a block has about twenty steps."""
    return 20 * len(model.blocks)


@pytest.mark.parametrize('autocast', [None, torch.bfloat16])
@pytest.mark.parametrize('patch_size', [16, 8])
def test_inference_equals_evaluation_with_a_gradient(patch_size, autocast):
    """Without a gradient, BatchNorm is folded and the branches are added in place."""
    model = small_xcit(patch_size, drop_path_rate=0.5).eval()
    randomize(model)
    image = torch.randn(2, 3, 480, 320)  # 600 or 2400 tokens: the Gram form, several chunks
    before = image.clone()
    tolerance = TOLERANCE if autocast is None else rounding_error(autocast, 2 * in_layers(model))
    with torch.autocast('cpu', autocast, enabled=autocast is not None):
        wanted = model(image)
        for no_gradient in (torch.no_grad, torch.inference_mode):
            with no_gradient():
                assert_same_maps(model(image), wanted, tolerance)
    assert torch.equal(image, before)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_a_model_of_16_bit_infers_in_16_bit(dtype):
    model, image = small_xcit().eval(), torch.randn(1, 3, 320, 320)
    with torch.no_grad():
        wanted = model(image)
        maps = model.to(dtype)(image.to(dtype))
    assert {m.dtype for m in maps} == {dtype}
    assert_same_maps(maps, wanted, rounding_error(dtype, in_layers(model)))


@pytest.fixture
def default_dtype(request):
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize('default_dtype', [torch.float32, torch.bfloat16], indirect=True)
@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('size', [64, 512])  # the direct form, the Gram form
def test_the_backbone_on_cuda(monkeypatch, size, training, default_dtype):
    """Devices, dtypes and shapes, on the fake tensors of PyTorch: without a GPU."""
    monkeypatch.setattr('xcit_mm.network.xcit.init_linear', lambda module: None)  # reads values
    with FakeTensorMode(), torch.device('cuda'), torch.set_grad_enabled(training):
        model = XCiT(SMALL | dict(embed_dim=128), 16, out_indices=(0, 1, 2, 3)).train(training)
        maps = model(torch.randn(2, 3, size, size))
    assert all(m.requires_grad == training for m in maps)
    assert [tuple(m.shape) for m in maps] == [
        (2, 128, size // s, size // s) for s in (4, 8, 16, 32)
    ]
    assert {m.device.type for m in maps} == {'cuda'}
    assert {m.dtype for m in maps} == {default_dtype}


@pytest.mark.parametrize(
    'training, size, backend', [(True, 64, 'eager'), (False, 320, 'aot_eager')]
)
def test_it_compiles_without_graph_breaks(training, size, backend):
    model = small_xcit(drop_path_rate=0.0).train(training)
    randomize(model)
    twin = copy.deepcopy(model)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    image = torch.randn(2, 3, size, size)
    with torch.set_grad_enabled(training):
        assert_same_maps(compiled(image), twin(image))


def test_float16_keeps_the_branches_of_an_initial_layer_scale():
    """Gamma starts at 1e-5 in the models of 24 layers; times a weight it vanishes in float16."""
    block = XCABlock(dim=32, num_heads=4, eta=1e-5, drop_path=0.0)
    names, params = zip(*block.named_parameters(), strict=True)
    x, cotangent = torch.randn(2, 400, 32), 1024 * torch.randn(2, 400, 32)  # a usual loss scale
    results = []
    for half in (False, True):
        with torch.autocast('cpu', torch.float16, enabled=half):
            y = block(x, 20, 20)
        results.append((y - x, *torch.autograd.grad(y, params, cotangent.to(y.dtype))))
    for name, exact, value in zip(('y', *names), *results, strict=True):
        assert relative_error(value.float(), exact) <= 2e-2, name


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
def test_it_can_be_traced():
    model, image = small_xcit().eval(), torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        traced = torch.jit.trace(model, image, check_trace=False)
        assert_same_maps(traced(image), model(image))


@pytest.mark.parametrize('stages', [0, 2])
def test_frozen_stages_get_no_gradient_and_keep_their_statistics(stages):
    model = small_xcit(frozen_stages=stages, drop_path_rate=0.5).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    sum(m.square().sum() for m in model(torch.randn(2, 3, 64, 64))).backward()
    frozen = ('patch_embed.', 'pos_embeder.', 'blocks.0.', 'blocks.1.')[: stages + 2]
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen), name
    for name, value in model.state_dict().items():
        if 'running' in name:
            assert torch.equal(value, before[name]) == name.startswith(frozen), name
    assert [block.training for block in model.blocks] == [i >= stages for i in range(4)]


@pytest.mark.parametrize('framework', ['mmengine', 'mmdet', 'mmseg'])
def test_both_frameworks_build_it_from_a_config(framework):
    registry = importlib.import_module(f'{framework}.registry').MODELS
    with torch.device('meta'):
        assert isinstance(registry.build(dict(type='XCiT', arch='n12', patch_size=16)), XCiT)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        (dict(arch='b12'), r"'b12'.*'n12'.*'l24'"),
        (dict(arch=dict(embed_dim=64)), 'embed_dim.*num_heads'),
        (dict(arch=SMALL | dict(embed_dim=36)), 'multiple of 8'),
        (dict(arch=SMALL | dict(depth=6, num_heads=5)), 'num_heads=5'),
        (dict(patch_size=14), r'14.*\(4, 8, 16\)'),
        (dict(out_indices=(3, 5, 7)), r'\(3, 5, 7\).*4 ascending layers in 0\.\.11'),
        (dict(out_indices=(5, 3, 7, 11)), 'ascending'),
        (dict(drop_path_rate=1.5), r'1\.5.*\[0, 1\)'),
        (dict(frozen_stages=13), r'13.*-1\.\.12'),
        (dict(start_level=4), r'start_level=4 .*0\.\.3'),
        (dict(in_channels=3.0), 'is not a positive integer'),
    ],
)
def test_a_wrong_argument_is_named_with_the_valid_choices(kwargs, message):
    with pytest.raises(ValueError, match=message), torch.device('meta'):
        XCiT(**kwargs)


@pytest.mark.parametrize('patch_size', [16, 8])
def test_out_norm_normalizes_the_channels_of_every_map(patch_size):
    plain, normed = small_xcit(patch_size), small_xcit(patch_size, out_norm=True)
    randomize(normed)
    state = normed.state_dict()
    plain.load_state_dict({k: v for k, v in state.items() if not k.startswith('out_norms')})
    image = torch.randn(2, 3, 64, 96)
    expected = [
        F.layer_norm(before.movedim(1, -1), (32,), norm.weight, norm.bias, 1e-6).movedim(-1, 1)
        for norm, before in zip(normed.out_norms, plain.eval()(image), strict=True)
    ]
    assert_same_maps(normed.eval()(image), expected)


def test_start_level_leaves_out_the_first_maps_and_their_layers():
    model = small_xcit().eval()
    randomize(model)
    image = torch.randn(2, 3, 64, 96)
    maps = model(image)
    for start_level, prefixes in {1: ('fpn1',), 2: ('fpn1', 'fpn2')}.items():
        later = small_xcit(start_level=start_level).eval()
        state = {k: v for k, v in model.state_dict().items() if not k.startswith(prefixes)}
        later.load_state_dict(state)
        assert_same_maps(later(image), maps[start_level:])
