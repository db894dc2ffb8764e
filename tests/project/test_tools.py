"""Train, resume, test and convert as a user types it, for both tasks, and wrong input."""

import json
import os
import re
import shutil
from pathlib import Path

import cv2
import pytest
import torch
from helpers import ROOT
from helpers.runs import DETECTOR, SEGMENTOR, assert_refused, losses, options, weights
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import XCiT, environment, mmcv_ops

NUM_VAL = 4  # images of the fixture shapes_root
BIAS = 'decode_head.conv_seg.bias'  # of the classes of the segmentor
ONLY_TRIANGLES = torch.tensor([0.0, 0.0, 0.0, 100.0])
both_tasks = pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR], ids=['boxes', 'labels'])


@pytest.fixture
def evaluate(run_tool, shapes_root, tmp_path):
    """Test a checkpoint; pictures are in tmp_path/pictures, metrics in tmp_path/out.json."""

    def evaluate(config: Path | str, checkpoint: Path) -> str:
        folders = ['--work-dir', tmp_path / 'test', '--show-dir', tmp_path / 'pictures']
        data = ['--out', tmp_path / 'out.json', '--cfg-options', f'data_root={shapes_root}']
        done = run_tool('test.py', config, checkpoint, *folders, *data)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    return evaluate


@both_tasks
def test_training_lowers_the_loss(trained, config):
    history = losses(trained(config)[0])
    assert sorted(history) == list(range(1, 13))
    assert sum(history[i] for i in (10, 11, 12)) < 0.9 * sum(history[i] for i in (1, 2, 3))


@both_tasks
def test_training_ends_with_the_metrics_the_files_and_pictures(trained, config):
    work_dir, output = trained(config)
    report = output[output.index('The training is finished.') :]
    assert ('boxes' in report and 'masks' in report) if config == DETECTOR else 'mIoU' in report
    files = dict(line.split(None, 1) for line in report.splitlines() if str(work_dir) in line)
    assert Path(files['checkpoint']) == work_dir / 'iter_12.pth'
    assert Path(files['checkpoint']).is_file()
    assert 'The training is finished.' in Path(files['log']).read_text()
    notice = 'mmcv has no compiled operators'
    assert Path(files['log']).read_text().count(notice) == mmcv_ops.in_force()
    assert re.search(r'eta: \d:\d\d:\d\d', output)
    pictures = sorted((work_dir / 'pictures').glob('*.png'))
    assert len(pictures) == NUM_VAL
    assert cv2.imread(str(pictures[0])).shape == (320, 640, 3)  # ground truth and prediction


@both_tasks
def test_a_training_is_resumed(trained, run_tool, shapes_root, tmp_path, config):
    shutil.copytree(trained(config)[0], tmp_path / 'work')
    arguments = ['--work-dir', tmp_path / 'work', '--resume', *options(shapes_root, 14)]
    done = run_tool('train.py', config, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(losses(tmp_path / 'work')) == list(range(1, 15))
    assert (tmp_path / 'work' / 'iter_14.pth').is_file()


def test_a_resumed_training_takes_all_weights_from_the_checkpoint(
    trained, run_tool, shapes_root, tmp_path
):
    checkpoint = torch.load(trained(SEGMENTOR)[0] / 'iter_12.pth', weights_only=False)
    checkpoint['state_dict'][BIAS].copy_(ONLY_TRIANGLES)
    torch.save(checkpoint, tmp_path / 'iter_12.pth')
    arguments = ['--work-dir', tmp_path, '--resume', *options(shapes_root, 13)]
    arguments += [f'pretrained={tmp_path}/gone.pth']  # of the first start, no longer needed
    done = run_tool('train.py', SEGMENTOR, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert torch.allclose(weights(tmp_path / 'iter_13.pth')[BIAS], ONLY_TRIANGLES, atol=0.1)

    del checkpoint['state_dict'][BIAS]
    torch.save(checkpoint, tmp_path / 'iter_13.pth')
    assert_refused(run_tool('train.py', SEGMENTOR, *arguments), 'iter_13.pth')


def test_averaged_weights_are_resumed_and_tested(evaluate, run_tool, shapes_root, tmp_path):
    path, work_dir = tmp_path / 'own.py', tmp_path / 'work'
    path.write_text(f"_base_ = '{ROOT / SEGMENTOR}'\ncustom_hooks = [dict(type='EMAHook')]\n")
    for number, more in ((1, []), (2, ['--resume'])):
        arguments = ['--work-dir', work_dir, *more, *options(shapes_root, number)]
        done = run_tool('train.py', path, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
    row = next(line for line in done.stdout.splitlines() if line.startswith('mIoU'))
    assert row in evaluate(path, work_dir / 'iter_2.pth')


@both_tasks
def test_testing_a_checkpoint_repeats_the_metrics_of_its_training(
    trained, evaluate, tmp_path, config
):
    work_dir, output = trained(config)
    tested = evaluate(config, work_dir / 'iter_12.pth')
    rows = [line for line in output.splitlines() if line.startswith(('boxes', 'masks', 'mIoU'))]
    assert rows and all(row in tested for row in rows)
    assert len(list((tmp_path / 'pictures').glob('*.png'))) == NUM_VAL
    report = json.loads((tmp_path / 'out.json').read_text())
    assert report['config'] == config
    assert report['checkpoint'] == str(work_dir / 'iter_12.pth')
    if config == DETECTOR:
        assert f'{report["metrics"]["coco/segm_mAP"]:.3f}' == rows[1].split()[1]
    else:
        assert f'{report["metrics"]["mIoU"]:.2f}' == rows[0].split()[1]
        assert list(report['class_iou']) == ['background', 'circle', 'square', 'triangle']
        mean = sum(report['class_iou'].values()) / 4
        assert report['metrics']['mIoU'] == pytest.approx(mean, abs=5.001e-3)


@pytest.mark.parametrize('layout', ['model', 'mmseg 0'])
def test_testing_evaluates_the_weights_of_a_release(trained, evaluate, tmp_path, layout):
    state = weights(trained(SEGMENTOR)[0] / 'iter_12.pth')
    state[BIAS].copy_(ONLY_TRIANGLES)
    state['backbone.cls_token'] = torch.zeros(1, 1, 128)
    layouts = {
        'model': {'model': state},  # which mmengine would not unwrap
        'mmseg 0': {
            'meta': {'mmseg_version': '0.11.0', 'CLASSES': ('wall',), 'PALETTE': [[1, 2, 3]]},
            'state_dict': state,
            'optimizer': {'state': {0: {'step': 3}}, 'param_groups': [{'lr': 6e-5}]},
        },
    }
    torch.save(layouts[layout], tmp_path / 'triangles.pth')
    output = evaluate(SEGMENTOR, tmp_path / 'triangles.pth')
    iou, accuracy = re.search(r'triangle +\| +([\d.]+) +\| +([\d.]+) ', output).groups()
    assert float(iou) > 0
    assert float(accuracy) == 100


def test_a_checkpoint_with_code_is_read_with_the_flag_only(
    trained, run_tool, shapes_root, tmp_path
):
    checkpoint = torch.load(trained(SEGMENTOR)[0] / 'iter_12.pth', weights_only=False)
    checkpoint['meta']['hook'] = os.getcwd  # stands for any function
    torch.save(checkpoint, tmp_path / 'code.pth')
    arguments = ['--work-dir', tmp_path / 'work', '--cfg-options', f'data_root={shapes_root}']
    done = run_tool('test.py', SEGMENTOR, tmp_path / 'code.pth', *arguments)
    assert_refused(done, 'posix.getcwd')
    done = run_tool('test.py', SEGMENTOR, tmp_path / 'code.pth', '--trust-checkpoint', *arguments)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_recipe_for_ade20k_trains_and_is_evaluated(run_tool, shapes_root, tmp_path):
    """On data in ADE20k's layout with four of its 150 labels."""
    done = run_tool(
        'train.py',
        'configs/upernet_xcit_t12_16_160k.py',
        '--work-dir',
        tmp_path,
        '--cfg-options',
        f'data_root={shapes_root}/ade',
        'train_cfg.max_iters=1',
        'pretrained=None',
        'train_dataloader.dataset.pipeline.2.scale=(512,128)',
        'train_dataloader.dataset.pipeline.3.crop_size=(128,128)',
        'model.data_preprocessor.size=(128,128)',
        'val_dataloader.dataset.pipeline.1.scale=(512,128)',
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output = done.stdout + done.stderr
    assert re.search(r'Iter\(train\) \[1/1\].*decode.loss_ce.*aux.loss_ce', output)
    assert 'The backbone starts from random weights' in output
    assert re.search(r'^mIoU +\d', output, re.MULTILINE)


def test_a_released_detector_is_fine_tuned_on_other_classes(run_tool, shapes_root, tmp_path):
    """With the config of docs/own_data.md, which is meant for the root of the clone."""
    page = (ROOT / 'docs' / 'own_data.md').read_text()
    start = page.index("_base_ = 'configs/mask_rcnn")
    text = page[start : page.index('```', start)].replace("'configs/", f"'{ROOT}/configs/")
    (tmp_path / 'own.py').write_text(text)
    released = Config.fromfile(ROOT / 'configs/mask_rcnn_xcit_t12_16_3x.py')
    released.model.backbone.init_cfg = None
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    model = MODELS.build(released.model)
    checkpoint = {
        'meta': {'mmdet_version': '2.11.0', 'CLASSES': ('person',), 'epoch': 36},
        'state_dict': model.state_dict(),
        'optimizer': {'state': {}, 'param_groups': []},
    }
    torch.save(checkpoint, tmp_path / 'released.pth')
    done = run_tool(
        'train.py',
        tmp_path / 'own.py',
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        f'data_root={shapes_root}/coco',
        f'load_from={tmp_path}/released.pth',
        'train_cfg.max_iters=1',
        'train_dataloader.batch_size=1',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'val_dataloader.dataset.pipeline.1.scale=(320,320)',
    )
    assert done.returncode == 0, done.stderr[-3000:]
    random = ['bbox_head.fc_cls', 'bbox_head.fc_reg', 'mask_head.conv_logits']
    random = [f'roi_head.{layer}' for layer in random]
    assert ', '.join(random) in done.stdout + done.stderr
    state = weights(tmp_path / 'work/iter_1.pth')
    for name, value in model.named_parameters():  # a step of the warm-up moves them very little
        if name.rpartition('.')[0] not in random:
            assert torch.allclose(state[name], value, atol=1e-6), name
    assert len(state['roi_head.bbox_head.fc_cls.weight']) == 4


def test_a_checkpoint_is_converted(run_tool, tmp_path):
    state = {f'backbone.{name}': value for name, value in XCiT('n12', 16).state_dict().items()}
    torch.save({'teacher': state}, tmp_path / 'a')
    done = run_tool('convert_checkpoint.py', tmp_path / 'a', tmp_path / 'b.pth')
    assert done.returncode == 0
    assert 'an XCiT of 12 layers, 128 channels, 4 heads and patch size 16' in done.stdout
    done = run_tool('convert_checkpoint.py', tmp_path / 'a', tmp_path / 'b.pth')
    assert_refused(done, f'{tmp_path}/b.pth')


@pytest.fixture(scope='module')
def files(tmp_path_factory) -> Path:
    """Weights that do not fit the model."""
    folder = tmp_path_factory.mktemp('files')
    torch.save({'state_dict': {'backbone.conv1.weight': torch.zeros(3)}}, folder / 'resnet.pth')
    torch.save({'model': XCiT('t12', 16).state_dict()}, folder / 't12.pth')
    torch.save(XCiT('n12', 16).state_dict(), folder / 'backbone.pth')
    return folder


@pytest.mark.parametrize(
    ('command', 'message'),
    [
        ('train.py configs/gone.py --cfg-options', 'configs/gone.py'),
        ('train.py {config} --work-dir {files}/t12.pth --cfg-options', '{files}/t12.pth'),
        ('train.py {config} --resume --cfg-options', '{out} holds no checkpoint'),
        ('train.py {config} --cfg-options model.backbone.arch=b12', "arch='b12'"),
        ('train.py {config} --cfg-options load_from={files}/gone.pth', '{files}/gone.pth'),
        ('train.py {config} --cfg-options load_from={files}/backbone.pth', '{files}/backbone.pth'),
        ('train.py {config} --cfg-options pretrained={files}/t12.pth', '192 channels'),
        ('test.py {config} {files}/gone.pth --cfg-options', '{files}/gone.pth'),
        ('test.py {config} {files}/resnet.pth --cfg-options', 'backbone.conv1.weight'),
        ('test.py {config} {files}/t12.pth --out {files} --cfg-options', '--out {files}'),
        ('train.py {config} --launcher slurm --cfg-options', 'tools/slurm_train.sh'),
    ],
)
def test_wrong_input_is_a_line_with_the_value(
    run_tool, shapes_root, tmp_path, files, command, message
):
    names = dict(config=DETECTOR, files=files, out=tmp_path)
    words = command.format(**names).split()
    if '--work-dir' not in words:
        words[2:2] = ['--work-dir', tmp_path]
    assert_refused(run_tool(*words, f'data_root={shapes_root}'), message.format(**names))
    assert not list(tmp_path.rglob('*.pth'))


@pytest.mark.skipif(torch.cuda.is_available(), reason='launchers without a GPU')
def test_a_launcher_that_needs_gpus_is_refused_without_them(
    run_tool, shapes_root, tmp_path, monkeypatch
):
    monkeypatch.setenv('OMPI_COMM_WORLD_RANK', '0')  # as under mpirun
    arguments = ['--work-dir', tmp_path, '--launcher', 'mpi', *options(shapes_root, 1)]
    assert_refused(run_tool('train.py', DETECTOR, *arguments), '--launcher mpi needs GPUs')


def test_missing_data_and_other_classes_are_refused_before_anything_is_written(
    run_tool, shapes_root, tmp_path
):
    work_dir = ['--work-dir', tmp_path / 'work']
    coco = 'configs/mask_rcnn_xcit_s12_8_3x.py'
    done = run_tool('train.py', coco, *work_dir, '--cfg-options', f'data_root={tmp_path}/coco')
    assert_refused(done, f'{tmp_path}/coco')
    assert 'cocodataset.org' in done.stderr

    root = shutil.copytree(shapes_root, tmp_path / 'shapes')
    path = root / 'coco/annotations/instances_val2017.json'
    path.write_text(path.read_text().replace('"triangle"', '"star"'))
    done = run_tool('train.py', DETECTOR, *work_dir, *options(root, 2))
    assert_refused(done, '3 classes (circle, square, star)')
    assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize('split', ['training', 'validation'])
def test_a_label_of_no_class_stops_with_its_file(run_tool, shapes_root, tmp_path, split):
    root = shutil.copytree(shapes_root, tmp_path / 'shapes')
    for path in (root / 'ade/annotations' / split).glob('*.png'):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        labels[5, 5] = 77
        cv2.imwrite(str(path), labels)
    done = run_tool('train.py', SEGMENTOR, '--work-dir', tmp_path / 'work', *options(root, 1))
    assert_refused(done, f'{root}/ade/annotations/{split}/')
    assert 'the label 77 is outside 1..4' in done.stderr
