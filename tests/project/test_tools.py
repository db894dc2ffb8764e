"""Train, test and convert as a user types it, for both tasks, and wrong input."""

import json
import os
import re
from pathlib import Path

import cv2
import pytest
import torch
from helpers import ROOT
from helpers.runs import DETECTOR, SEGMENTOR, assert_refused, losses, weights
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import XCiT, mmcv_ops
from xcit_mm.base import environment

NUM_VAL = 4  # images of the fixture shapes_root
BIAS = 'decode_head.conv_seg.bias'  # of the classes of the segmentor
ONLY_TRIANGLES = torch.tensor([0.0, 0.0, 0.0, 100.0])
COUNTED = {DETECTOR: {'boxes', 'masks'}, SEGMENTOR: {'pixels'}}
both_tasks = pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR], ids=['boxes', 'labels'])


@pytest.fixture
def tool(run_tool):
    """Run a tool, which must succeed, and return what it prints."""

    def run(*command: object) -> str:
        done = run_tool(*command)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    return run


@pytest.fixture
def evaluate(tool, shapes_root, tmp_path):
    """Test a checkpoint; pictures, errors and out.json are in tmp_path."""

    def evaluate(config: Path | str, checkpoint: Path, *more: str) -> str:
        folders = ['--work-dir', tmp_path / 'test', '--show-dir', tmp_path / 'pictures']
        folders += ['--errors', tmp_path / 'errors']
        data = ['--out', tmp_path / 'out.json', '--cfg-options', f'data_root={shapes_root}']
        return tool('test.py', config, checkpoint, *more, *folders, *data)

    return evaluate


@both_tasks
def test_training_lowers_the_loss_and_ends_with_the_metrics_and_the_files(trained, config):
    work_dir, output = trained(config)
    history = losses(work_dir)
    assert sorted(history) == list(range(1, 13))
    assert sum(history[i] for i in (10, 11, 12)) < 0.9 * sum(history[i] for i in (1, 2, 3))
    assert re.search(r'eta: \d:\d\d:\d\d', output)
    assert 'INFO - The backbone starts from random weights' in output  # needs no action

    report = output[output.index('The training is finished.') :]
    assert ('boxes' in report and 'masks' in report) if config == DETECTOR else 'mIoU' in report
    files = dict(line.split(None, 1) for line in report.splitlines() if str(work_dir) in line)
    assert files['last'].startswith(f'{work_dir / "last.pth"} (iter_12.pth, ')
    assert (work_dir / 'last.pth').samefile(work_dir / 'iter_12.pth')
    model = f'{work_dir / Path(config).name} {work_dir / "last.pth"}'
    following = [line for line in report.splitlines() if model in line]
    assert [line.split()[0] for line in following] == [
        f'tools/{name}.py' for name in ('test', 'infer', 'export')
    ]
    assert Path(following[1].split()[3]).is_dir()  # with the images of the validation
    log = Path(files['log']).read_text()
    assert 'The training is finished.' in log
    assert 'per class results' not in log and 'creating index' not in output
    assert re.search(r'Validation at 12 of 12: (bbox_mAP|mIoU) [\d.]+, .* s$', log, re.MULTILINE)
    assert log.count('mmcv has no compiled operators') == mmcv_ops.is_active()
    pictures = list((work_dir / 'pictures').glob('*.png'))
    assert len(pictures) == NUM_VAL
    height, width, _ = cv2.imread(str(pictures[0])).shape  # ground truth and prediction
    assert width == 640
    assert (height == 320) == (config == DETECTOR)  # labels have a legend below
    errors = list((work_dir / 'errors').glob('*/errors.png'))
    assert {path.parent.name for path in errors} == COUNTED[config]
    page = (work_dir / 'report.html').read_text()
    assert page.count('data:image/png') == len(errors)


@both_tasks
def test_testing_a_checkpoint_repeats_the_metrics_of_its_training(
    trained, evaluate, tmp_path, config
):
    work_dir, output = trained(config)
    tested = evaluate(config, work_dir / 'iter_12.pth')
    rows = [line for line in output.splitlines() if line.startswith(('boxes', 'masks', 'mIoU'))]
    assert rows and all(row in tested for row in rows)
    assert re.search(rf'{NUM_VAL} images in [\d.]+ s, [\d.]+ images/s', tested)
    assert len(list((tmp_path / 'pictures').glob('*.png'))) == NUM_VAL
    for of in COUNTED[config]:
        files = ['classes.csv', 'confusion.csv', 'counts.csv']
        files += ['errors.csv'] if config == DETECTOR else []
        for name in files:  # as in the validation
            texts = [(folder / 'errors' / of / name).read_text() for folder in (tmp_path, work_dir)]
            # Another worker, which has its own copy of the data, may have trained.
            tested_text, trained_text = (re.sub(r'popen-gw\d+', '', text) for text in texts)
            assert tested_text == trained_text and len(tested_text.splitlines()) > 3
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


@pytest.mark.parametrize('is_trusted', [False, True])
def test_testing_evaluates_the_weights_of_the_file(trained, evaluate, tmp_path, is_trusted):
    state = weights(trained(SEGMENTOR)[0] / 'iter_12.pth')
    state[BIAS].copy_(ONLY_TRIANGLES)
    meta = {'mmseg_version': '0.11.0', 'CLASSES': ('wall',), 'hook': os.getcwd}
    checkpoint, more = {'meta': meta, 'state_dict': state}, ['--trust-checkpoint']
    if not is_trusted:
        state['backbone.cls_token'] = torch.zeros(1, 1, 128)  # as in a release
        checkpoint, more = {'model': state}, []  # which mmengine would not unwrap
    torch.save(checkpoint, tmp_path / 'triangles.pth')
    output = evaluate(SEGMENTOR, tmp_path / 'triangles.pth', *more)
    iou, accuracy = re.search(r'^triangle +([\d.]+) +([\d.]+)$', output, re.MULTILINE).groups()
    assert float(iou) > 0
    assert float(accuracy) == 100


@pytest.mark.slow
def test_a_released_detector_is_fine_tuned_on_other_classes(tool, shapes_root, tmp_path):
    """With the config of docs/your_data.md, which is meant for the root of the clone."""
    page = (ROOT / 'docs' / 'your_data.md').read_text()
    start = page.index("_base_ = 'configs/mask_rcnn")
    text = page[start : page.index('```', start)].replace("'configs/", f"'{ROOT}/configs/")
    (tmp_path / 'own.py').write_text(text)
    released = Config.fromfile(ROOT / 'configs/mask_rcnn_xcit_t12_16_3x.py')
    released.model.backbone.init_cfg = None
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    model = MODELS.build(released.model)
    meta = {'mmdet_version': '2.11.0', 'CLASSES': ('person',), 'epoch': 36}
    torch.save({'meta': meta, 'state_dict': model.state_dict()}, tmp_path / 'released.pth')
    small = ['train_cfg.max_iters=1', 'train_dataloader.batch_size=1']
    small += ['val_dataloader.dataset.pipeline.1.scale=(320,320)']
    resizes = 'train_dataloader.dataset.pipeline.3.transforms'
    small += [f'{resizes}.0.0.scales=[(320,320)]', f'{resizes}.1.2.scales=[(320,320)]']
    data = [f'data_root={shapes_root}/coco', f'load_from={tmp_path}/released.pth']
    own = [tmp_path / 'own.py', '--work-dir', tmp_path / 'work', '--cfg-options']
    output = tool('train.py', *own, *data, *small)
    random = ['bbox_head.fc_cls', 'bbox_head.fc_reg', 'mask_head.conv_logits']
    random = [f'roi_head.{layer}' for layer in random]
    assert ', '.join(random) in output
    state = weights(tmp_path / 'work/iter_1.pth')
    for name, value in model.named_parameters():  # a step of the warm-up moves them very little
        if name.rpartition('.')[0] not in random:
            assert torch.allclose(state[name], value, atol=1e-6), name
    assert len(state['roi_head.bbox_head.fc_cls.weight']) == 4


@pytest.fixture(scope='module')
def files(tmp_path_factory) -> Path:
    """Weights that are not of a model, and code."""
    folder = tmp_path_factory.mktemp('files')
    torch.save(XCiT('n12', 16).state_dict(), folder / 'backbone.pth')
    torch.save({'state_dict': {}, 'meta': {'hook': os.getcwd}}, folder / 'code.pth')
    return folder


@pytest.mark.parametrize(
    ('command', 'message'),
    [
        ('train.py configs/mask_rcnn_xcit_s12_8_3x.py', 'tools/prepare_data.py coco --root'),
        ('train.py {config} --cfg-options load_from={files}/backbone.pth', '{files}/backbone.pth'),
        ('train.py {config} --resume {files}/gone.pth', '{files}/gone.pth does not exist'),
        ('train.py {config} --launcher slurm', 'tools/slurm_train.sh'),
        ('test.py {config} {files}/code.pth', 'posix.getcwd'),
    ],
)
def test_wrong_input_is_a_line_with_the_value(
    run_tool, shapes_root, tmp_path, files, command, message
):
    names = dict(config=DETECTOR, files=files)
    words = command.format(**names).split()
    if '--work-dir' not in words:
        words[2:2] = ['--work-dir', tmp_path / 'work']
    done = run_tool(*words, '--cfg-options', f'data_root={shapes_root}')
    assert_refused(done, message.format(**names))
    assert not list(tmp_path.rglob('*.pth'))
