"""Training, testing and counting of a model of heights."""

import json
from types import SimpleNamespace

import pytest
import torch
from helpers.heights import CONFIG, build_heights
from helpers.runs import losses, options
from mmengine.config import DictAction
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from PIL import Image

from benchmarks.terrain import HeightsSpec, make_heights
from xcit_mm import UserError
from xcit_mm.apps.export.graphs import build_graph
from xcit_mm.apps.flops.models import count_config
from xcit_mm.train import test as evaluate
from xcit_mm.train import train
from xcit_mm.train.hooks.label_check import LabelCheckHook


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'heights'
    make_heights(root, HeightsSpec(num_train=8, num_val=2))
    return root


def changes(root, max_iters: int) -> dict:
    pairs = (text.split('=', 1) for text in options(root, max_iters)[1:])
    return {name: DictAction._parse_int_float_bool(value) for name, value in pairs}


def test_a_model_of_heights_is_trained_and_tested(root, tmp_path):
    run = tmp_path / 'run'
    train(CONFIG, str(run), options=changes(root, 2))
    assert losses(run).keys() == {1, 2}
    pictures = sorted((run / 'pictures').iterdir())
    assert len(pictures) == 2
    assert Image.open(pictures[0]).width == 2 * 320  # ground truth and prediction, enlarged

    of_test = {'data_root': str(root), 'test_evaluator.tile': 80}
    folders = dict(work_dir=str(tmp_path / 'test'), show_dir=str(tmp_path / 'shown'))
    written = tmp_path / 'metrics.json'
    evaluate(CONFIG, str(run / 'iter_2.pth'), out=str(written), options=of_test, **folders)
    metrics = json.loads(written.read_text())['metrics']
    assert metrics.keys() == {
        f'height/{name}' for name in ('MAE', 'RMSE', 'delta1', 'step', 'step_inside')
    }
    assert 0 < metrics['height/MAE'] < metrics['height/RMSE'] < 30
    assert len([*(tmp_path / 'shown').iterdir()]) == 2


def test_a_height_without_a_logarithm_stops_a_training_but_no_evaluation():
    loss = dict(type='LabeledSiLogLoss')
    model = build_heights(positive=True, loss_decode=loss).train()
    sample = SegDataSample(metainfo=dict(seg_map_path='a.tif'))
    sample.gt_depth_map = PixelData(data=torch.tensor([[[2.0, torch.nan], [1.0, -0.5]]]))
    runner, batch = SimpleNamespace(model=model), dict(data_samples=[sample])
    with pytest.raises(UserError) as raised:
        LabelCheckHook().before_train_iter(runner, 0, batch)
    assert str(raised.value).startswith('a.tif: the height -0.5 has no logarithm')
    model.eval()
    LabelCheckHook().before_val_iter(runner, 0, batch)
    LabelCheckHook().before_train_iter(SimpleNamespace(model=build_heights().train()), 0, batch)


def test_positive_heights_have_gradients_everywhere():
    model = build_heights(mean=-30.0, positive=True, loss_decode=dict(type='LabeledSiLogLoss'))
    sample = SegDataSample(metainfo=dict(img_shape=(64, 64), ori_shape=(64, 64)))
    sample.gt_depth_map = PixelData(data=torch.rand(1, 64, 64) + 1)
    (loss,) = model.loss(torch.randn(1, 3, 64, 64), [sample]).values()
    loss.backward()
    gradients = [p.grad for p in model.decode_head.parameters()]
    assert all(g.isfinite().all() and g.any() for g in gradients)


def test_a_model_of_heights_is_counted_and_its_export_is_refused():
    model = build_heights()
    *_, of_head = count_config(CONFIG, (160, 160)).parts
    assert of_head.name == 'decode head' and of_head.multiply_adds > 1e8
    with pytest.raises(UserError) as raised:
        build_graph(model, 'model')
    assert str(raised.value) == (
        'a model of heights cannot be exported as a whole: --part backbone exports its maps'
    )
    assert build_graph(model, 'backbone')
