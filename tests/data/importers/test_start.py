"""What a training on a dataset of one's own starts from."""

from pathlib import Path

import pytest
import torch
from helpers.in_process import call_tool
from helpers.other_layouts import voc_object, write_xml
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import UserError
from xcit_mm.config import start as module
from xcit_mm.config.load import load_config
from xcit_mm.config.own_schedule import schedule
from xcit_mm.config.start import Start, find_start
from xcit_mm.data.importers.write_coco import convert, objects
from xcit_mm.data.importers.yolo import YoloDataset
from xcit_mm.network import XCiT
from xcit_mm.network.weights.cache import cache_path
from xcit_mm.train import train


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, and a server that does not answer."""
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(module, 'SERVER', 'http://127.0.0.1:9/')

    def put(file: str, content: object) -> Path:
        path = cache_path(module.SERVER + file)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path)
        return path

    return put


def released(arch: str) -> dict:
    """The weights of a backbone in the layout of a released detector, without the whole heads."""
    state = {f'backbone.{name}': value for name, value in XCiT(arch, 16).state_dict().items()}
    head = {'roi_head.bbox_head.fc_cls.weight': torch.zeros(81, 1024)}
    head['neck.fpn_convs.0.conv.weight'] = torch.zeros(256)
    return dict(meta=dict(CLASSES=('person',)), state_dict=state | head, optimizer={})


def test_a_released_detector_is_fine_tuned_by_default(cache, yolo, tmp_path, monkeypatch, capfd):
    cache('coco/maskrcnn_xcit_tiny_12_p16.pth', released('t12'))
    typed = ('yolo', yolo, '--root', tmp_path / 'out')
    assert call_tool(monkeypatch, capfd, 'prepare_data.py', *typed)[0] == 0
    cfg = load_config(tmp_path / 'out/out.py')
    assert cfg.load_from == f'{module.SERVER}coco/maskrcnn_xcit_tiny_12_p16.pth'
    backbone = dict(arch='t12', patch_size=16, norm_eval=True, frozen_stages=4, init_cfg=None)
    assert {key: cfg.model.backbone[key] for key in backbone} == backbone
    # The labels are boxes.
    assert cfg.model.type == 'FasterRCNN' and cfg.model.roi_head.bbox_head.num_classes == 2
    assert cfg.default_hooks.checkpoint.save_best == 'coco/bbox_mAP'
    assert cfg.train_cfg.max_iters == 10 * cfg.train_cfg.val_interval == cfg.max_iters
    assert cfg.param_scheduler[1].end == cfg.max_iters
    assert cfg.train_dataloader.dataset.pipeline[2].scale == (64, 64)


def test_masks_are_learned_if_all_objects_have_one(cache, yolo, tmp_path):
    outline = '1 0.1 0.1 0.9 0.1 0.5 0.9\n'
    for file in yolo.glob('labels/*/*.txt'):
        file.write_text(outline)
    weights = tmp_path / 'some.pth'
    torch.save(released('s12'), weights)
    convert(YoloDataset(yolo), tmp_path / 'out', objects(find_start(str(weights), None, 'coco')))
    cfg = load_config(tmp_path / 'out/out.py')
    assert cfg.model.type == 'MaskRCNN' and cfg.model.roi_head.mask_head.num_classes == 2
    assert cfg.model.neck.in_channels == [384] * 4
    assert cfg.load_from == f'{tmp_path}/out/../some.pth'
    assert cfg.default_hooks.checkpoint.save_best == 'coco/segm_mAP'

    (yolo / 'labels/val/a.txt').write_text(f'{outline}1 0.5 0.5 0.5 0.5\n')
    convert(YoloDataset(yolo), tmp_path / 'out', objects(Start('s12')))
    assert load_config(tmp_path / 'out/out.py').model.type == 'FasterRCNN'


@pytest.mark.parametrize(
    ('start', 'size', 'error'),
    [
        (
            None,
            None,
            r'tiny_12_p16.pth cannot be .*; to start from random weights instead',
        ),
        ('imagenet', 's12', r'xcit_small_12_p16_384_dist.pth cannot be .*--start FILE'),
        ('coco', 'n12', '--start coco --size n12: no such model was released: use --start imagen'),
        ('ade20k', None, '--start ade20k is not for this task: use coco or imagenet'),
        ('no.pth', None, 'the checkpoint no.pth does not exist'),
    ],
)
def test_without_weights_nothing_is_written(
    cache, yolo, tmp_path, monkeypatch, capfd, start, size, error
):
    with pytest.raises(UserError, match=error):
        find_start(start, size, 'coco')
    typed = [*(['--start', start] if start else []), *(['--size', size] if size else [])]
    typed = ('yolo', yolo, '--root', tmp_path / 'out', *typed)
    code, output, errors = call_tool(monkeypatch, capfd, 'prepare_data.py', *typed)
    assert code == 2 and output == '' and len(errors.splitlines()) == 1
    assert not (tmp_path / 'out').exists()


def test_damaged_and_other_weights_are_refused(cache):
    path = cache('coco/maskrcnn_xcit_tiny_12_p16.pth', released('t12'))
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match=r'tiny_12_p16.pth .*cannot be read: it is cut off'):
        find_start('coco', 't12', 'coco')
    torch.save(released('n12'), path)
    with pytest.raises(UserError, match=r'holds XCiT-N12/16, not t12'):
        find_start(str(path), 't12', 'coco')
    custom = dict(embed_dim=16, depth=4, num_heads=2, eta=1.0)
    torch.save(XCiT(custom, 16, (0, 1, 2, 3)).state_dict(), path)
    with pytest.raises(UserError, match=r'holds an XCiT of 4 layers.* not one of n12'):
        find_start(str(path), None, 'coco')


def test_sizes_without_a_released_detector_start_from_imagenet(cache):
    cache('xcit_nano_12_p16_384_dist.pth', dict(model=XCiT('n12', 16).state_dict()))
    start = find_start(None, 'n12', 'coco')
    assert (start.arch, start.load_from) == ('n12', None)
    assert start.pretrained == f'{module.SERVER}xcit_nano_12_p16_384_dist.pth'
    assert find_start('scratch', None, 'coco') == Start('n12')


def test_a_file_of_another_task_gives_its_backbone_and_a_small_detector_its_neck(tmp_path):
    state = released('n12')['state_dict']
    torch.save(state, tmp_path / 'detector.pth')
    assert find_start(f'{tmp_path}/detector.pth', None, 'ade20k').load_from is None
    assert find_start(f'{tmp_path}/detector.pth', None, 'ade20k').pretrained is not None
    torch.save(state | {'neck.fpn_convs.0.conv.weight': torch.zeros(64)}, tmp_path / 'small.pth')
    start = find_start(f'{tmp_path}/small.pth', None, 'coco')
    assert (start.arch, start.neck_channels) == ('n12', 64)
    torch.save(state | {'neck.fpn_convs.0.conv.weight': torch.zeros(96)}, tmp_path / 'other.pth')
    assert find_start(f'{tmp_path}/other.pth', None, 'coco').load_from is None


def test_the_patch_size_and_the_normalization_of_a_file_are_kept(yolo, tmp_path):
    images = dict(mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0])
    meta = dict(patch_size=4, images=images)
    torch.save(dict(meta=meta, state_dict=XCiT('n12', 4).state_dict()), tmp_path / 'own.pth')
    start = find_start(f'{tmp_path}/own.pth', None, 'coco')
    convert(YoloDataset(yolo), tmp_path / 'out', objects(start))
    model = load_config(tmp_path / 'out/out.py').model
    assert model.backbone.patch_size == 4
    assert (model.data_preprocessor.mean, model.data_preprocessor.std) == (*images.values(),)


def test_from_scratch_all_layers_have_one_rate_and_the_run_does_not_stop_early(yolo, tmp_path):
    convert(YoloDataset(yolo), tmp_path / 'out', objects(Start('t12')))
    cfg = load_config(tmp_path / 'out/out.py')
    assert cfg.optim_wrapper.paramwise_cfg.layer_decay == 1 and cfg.default_hooks.stopping is None
    assert cfg.model.backbone.frozen_stages == -1


def test_the_run_is_as_long_as_the_number_of_images_needs():
    start = Start('t12', load_from='x.pth')
    steps = [schedule(start, n)['max_iters'] for n in (1, 48, 500, 10_000)]
    assert steps == sorted(steps) and all(n % 10 == 0 for n in steps)
    assert steps[0] == 200 and steps[-1] == 30_000
    assert start.backbone(48)['frozen_stages'] == 4 and start.backbone(500)['frozen_stages'] == -1


def test_a_small_detector_is_fine_tuned_faster_than_a_large_one():
    small = Start('n12', load_from='x.pth', neck_channels=64)
    large = Start('n12', load_from='x.pth', neck_channels=256)
    rates = [schedule(start, 48)['lr'] for start in (small, large, Start('n12'))]
    assert rates == [3e-4, 1e-4, 1e-3]  # on a CPU; docs/your_data.md has the comparison


def test_a_start_is_trained_and_its_new_tensors_are_named(voc, tmp_path, capfd):
    write_xml(voc, 'a', 40, 30, voc_object('nut', [10, 5, 20, 15]))
    from xcit_mm.data.importers.voc import VocDataset

    cfg = load_config('configs/fine_tune_faster_rcnn_xcit_t12_16.py')
    cfg.model.backbone.arch, cfg.model.neck.in_channels = 'n12', [128] * 4
    cfg.model.roi_head.bbox_head.num_classes = 80
    init_default_scope('mmdet')
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / 'coco.pth')
    start = find_start(str(tmp_path / 'coco.pth'), None, 'coco')
    convert(VocDataset(voc), tmp_path / 'out', objects(start))
    options = {
        'max_iters': 1,
        'scale': 32,
        'train_dataloader.batch_size': 1,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'val_dataloader.num_workers': 0,
        'val_dataloader.persistent_workers': False,
        'default_hooks.pictures': None,
    }
    train(tmp_path / 'out/out.py', str(tmp_path / 'run'), options=options)
    printed = ' '.join(capfd.readouterr())
    heads = 'roi_head.bbox_head.fc_cls, roi_head.bbox_head.fc_reg'
    assert '4 of the ' in printed and f'none of their size: {heads}' in printed
    assert (tmp_path / 'run/iter_1.pth').exists()
