"""The gradients of a streamed image against autograd over the whole image."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import randomize, relative_error, rounding_error
from helpers.processes import in_processes
from helpers.small_xcit import small_xcit
from torch import Tensor, nn

from xcit_mm import XCiT, stream_backward
from xcit_mm.base.device import multiplies_bfloat16
from xcit_mm.base.errors import ArgumentError, UserError
from xcit_mm.large.tokens import backward, passes


def whole_gradients(backbone: nn.Module, image: Tensor, seed: int = 0) -> list[Tensor]:
    """Return random gradients of the maps, and send them to the parameters by autograd."""
    torch.manual_seed(seed)
    maps = backbone(image[None])
    gradients = [torch.randn_like(m) for m in maps]
    pairs = [pair for pair in zip(maps, gradients, strict=True) if pair[0].requires_grad]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [gradient[0] for gradient in gradients]


def taken(backbone: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of the parameters, and remove them."""
    gradients = {n: p.grad for n, p in backbone.named_parameters() if p.grad is not None}
    backbone.zero_grad()
    return gradients


def largest_error(backbone: nn.Module, expected: dict[str, Tensor]) -> tuple[float, str]:
    gradients = taken(backbone)
    assert gradients.keys() == expected.keys()
    floor = 1e-9 * max(value.norm() for value in expected.values())  # the rest is rounding
    return max(
        (relative_error(gradients[name].double(), value.double()), name)
        for name, value in expected.items()
        if value.norm() > floor
    )


def compared(backbone: nn.Module, image: Tensor, seed: int = 0, **options) -> tuple[float, str]:
    gradients = whole_gradients(backbone, image, seed)
    expected = taken(backbone)
    torch.manual_seed(seed)
    stream_backward(backbone, image, gradients, **options)
    return largest_error(backbone, expected)


def test_gradients_equal_those_of_the_whole_image():
    torch.manual_seed(1)
    backbone = XCiT('n12', 16, drop_path_rate=0, norm_eval=True).train()
    image = torch.randn(3, 161, 107)
    for dtype, tolerance, heights in (
        (torch.float32, 1e-5, (2, None)),
        (torch.float64, 1e-12, (1, 5, None)),
    ):
        backbone = backbone.to(dtype)
        if dtype == torch.float64:
            randomize(backbone)  # so that each parameter matters
        gradients = whole_gradients(backbone, image.to(dtype))
        expected = taken(backbone)
        for rows in heights:
            stream_backward(backbone, image.to(dtype), gradients, rows=rows)
            assert largest_error(backbone, expected)[0] <= tolerance


@pytest.mark.parametrize(
    'options',
    [
        dict(drop_path_rate=0.4),
        dict(drop_path_rate=0.4, with_cp=True, frozen_stages=2),
        dict(frozen_stages=0, start_level=1, out_norm=True),
        dict(frozen_stages=4),
        dict(in_channels=5, start_level=3),
    ],
    ids=str,
)
def test_options_of_the_backbone(options):
    torch.manual_seed(1)
    backbone = small_xcit(8, norm_eval=True, **options).double()
    randomize(backbone)
    image = torch.randn(options.get('in_channels', 3), 73, 91).double()
    for seed in range(2):
        assert compared(backbone.train(), image, seed, rows=3)[0] <= 1e-12


def test_gradients_are_added_to_those_that_are_there():
    backbone = small_xcit().eval()
    randomize(backbone)
    image = torch.randn(3, 64, 80)
    gradients = whole_gradients(backbone, image)
    whole_gradients(backbone, image)  # added once more
    expected = taken(backbone)
    for _ in range(2):
        stream_backward(backbone, image, gradients)
    assert largest_error(backbone, expected)[0] <= 1e-5


def test_a_parameter_that_is_frozen_gets_no_gradient():
    backbone = small_xcit().eval().double()
    randomize(backbone)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_('blocks.2.norm1' in name or 'blocks.3.attn' in name)
    assert compared(backbone, torch.randn(3, 64, 80).double(), rows=1)[0] <= 1e-12
    backbone.requires_grad_(False)
    backbone.fpn2.requires_grad_(True)
    assert compared(backbone, torch.randn(3, 64, 80).double(), rows=1)[0] <= 1e-12


def test_tiles_of_columns_and_of_any_object_with_windows(monkeypatch):
    monkeypatch.setattr(passes, 'TILE_TOKENS', 40)
    monkeypatch.setattr(passes, 'MAX_COLUMNS', 8)
    backbone = small_xcit(8).eval().double()
    randomize(backbone)
    image = torch.randn(3, 123, 161).double()
    gradients = whole_gradients(backbone, image)
    expected = taken(backbone)

    class Windows:
        def __init__(self, values: Tensor) -> None:
            self.values, self.shape = values.numpy(), values.shape

        def __getitem__(self, window: tuple[slice, ...]) -> np.ndarray:
            assert all(span.stop - span.start <= 128 for span in window[1:])
            return self.values[window]

    stream_backward(backbone, Windows(image), [Windows(g) for g in gradients])
    assert largest_error(backbone, expected)[0] <= 1e-12


def test_with_little_memory_some_inputs_are_computed_again(monkeypatch, tmp_path):
    backbone = XCiT('n12', 16, drop_path_rate=0.2, norm_eval=True).double()
    randomize(backbone)
    image = torch.randn(3, 120, 330).double()
    monkeypatch.setattr(passes, 'TILE_TOKENS', 50)
    used = []
    opened = backward.open_workspace
    monkeypatch.setattr(
        backward, 'open_workspace', lambda *args: used.append(opened(*args)) or used[-1]
    )
    computed = []
    again = backward.TrainedPasses._compute_again
    monkeypatch.setattr(
        backward.TrainedPasses,
        '_compute_again',
        lambda self, n: computed.append(self.every) or again(self, n),
    )
    needed = backward.TrainedPasses(backbone, image, rows=4).demand
    for share, every in {1.0: 1, 0.75: 2}.items():
        memory = int(share * needed.files) + needed.tile
        assert compared(backbone, image, rows=4, memory=memory)[0] <= 1e-12
        assert {*computed} == {every} and used[-1].folder is None
        computed.clear()
    with pytest.raises(UserError, match=r'the stores need .* name a folder'):
        stream_backward(backbone, image, whole_gradients(backbone, image), 4, needed.tile)
    taken(backbone)
    assert compared(backbone, image, rows=4, memory=needed.tile, store=tmp_path)[0] <= 1e-12
    assert {*computed} == {1} and used[-1].folder.parent == tmp_path
    assert not used[-1].folder.exists()


def test_several_processes_share_an_image(tmp_path, count=3):
    backbone = small_xcit(8, norm_eval=True, drop_path_rate=0.3).double()
    randomize(backbone)
    image = torch.randn(3, 184, 131).double()
    gradients = whole_gradients(backbone, image)
    expected = taken(backbone)

    def compare(rank: int) -> None:
        torch.manual_seed(rank)  # the first process draws for all
        own = [
            g[:, g.shape[1] * rank // count : g.shape[1] * (rank + 1) // count] for g in gradients
        ]
        for rows in (1, None):
            stream_backward(backbone, image, own, rows=rows)
            assert largest_error(backbone, expected)[0] <= 1e-12
            torch.manual_seed(rank)

    in_processes(count, compare, tmp_path)


def test_bfloat16_loses_no_more_than_the_whole_image():
    torch.manual_seed(2)
    backbone = XCiT('n12', 16, drop_path_rate=0, norm_eval=True)
    image = torch.randn(3, 161, 330)
    gradients = whole_gradients(backbone.double(), image.double())
    exact = taken(backbone)
    halves = [gradient.bfloat16() for gradient in gradients]

    def error(found: dict[str, Tensor]) -> float:
        difference = sum((found[n].double() - exact[n]).square().sum() for n in exact)
        return float((difference / sum(g.square().sum() for g in exact.values())).sqrt())

    cases = {torch.bfloat16: False}
    if multiplies_bfloat16():
        cases[torch.float32] = True
    for dtype, is_autocast in cases.items():
        backbone = backbone.to(dtype)
        with torch.autocast('cpu', torch.bfloat16, enabled=is_autocast):
            maps = backbone(image[None].to(dtype))
            torch.autograd.backward(
                maps, [g[None].to(m) for g, m in zip(halves, maps, strict=True)]
            )
            whole = error(taken(backbone))
            stream_backward(backbone, image.to(dtype), halves)
        # In each layer, in both passes: the matrix of the attention, and the stored tokens.
        more = rounding_error(torch.bfloat16, 4 * len(backbone.blocks))
        assert error(taken(backbone)) <= whole + more < 0.1


@pytest.mark.parametrize(
    ('change', 'sentence'),
    [
        (lambda x: setattr(x, 'backbone', small_xcit()), 'with norm_eval=True'),
        (lambda x: x.gradients.pop(), 'the gradients have the shapes'),
        (lambda x: x.gradients.__setitem__(0, None), 'the gradients have the shapes'),
        (lambda x: x.image[:, 50, 3].fill_(torch.nan), 'not finite in float32: check the image'),
        (lambda x: x.gradients[1][2, 3].fill_(torch.nan), 'gradients .* are not finite'),
        (lambda x: setattr(x, 'backbone', nn.Identity()), 'only an XCiT can'),
    ],
)
def test_bad_arguments(change, sentence):
    backbone = small_xcit().eval()
    image = torch.randn(3, 64, 80)
    with torch.no_grad():
        gradients = [m[0] for m in backbone(image[None])]
    case = SimpleNamespace(backbone=backbone, image=image, gradients=gradients, rows=None)
    change(case)
    with pytest.raises((ArgumentError, UserError), match=sentence):
        stream_backward(case.backbone, case.image, case.gradients, case.rows)
    assert all(p.grad is None for p in case.backbone.parameters())


def test_an_error_leaves_the_gradients_as_they_were():
    backbone = small_xcit().eval()
    image = torch.randn(3, 64, 80)
    gradients = whole_gradients(backbone, image)
    expected = {name: value.clone() for name, value in taken(backbone).items()}
    whole_gradients(backbone, image)

    class Vanishing:
        shape, reads = image.shape, 0

        def __getitem__(self, window: tuple[slice, ...]) -> Tensor:
            self.reads += 1
            if self.reads == 2:  # by the last pass back
                raise UserError('the image is gone')
            return image[window]

    with pytest.raises(UserError, match='the image is gone'):
        stream_backward(backbone, Vanishing(), gradients)
    assert all(torch.equal(p.grad, expected[n]) for n, p in backbone.named_parameters())


def test_norm_eval_keeps_the_statistics():
    backbone = small_xcit(norm_eval=True)
    before = {name: value.clone() for name, value in backbone.named_buffers()}
    backbone(torch.randn(2, 3, 64, 64))
    assert backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.named_buffers())
