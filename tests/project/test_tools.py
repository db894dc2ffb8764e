"""The command lines as a user types them: train, resume, test, and what they say of wrong input."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.runs import DETECTOR, SEGMENTOR, assert_refused, losses, options
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import XCiT, cli, environment, mmcv_ops

NUM_VAL = 4  # images of the fixture shapes_root


def evaluate(run_tool, config, checkpoint: Path, shapes_root: Path, folder: Path) -> str:
    """What tools/test.py prints; its pictures lie in folder/pictures, its metrics in out.json."""
    done = run_tool(
        'test.py',
        config,
        checkpoint,
        '--work-dir',
        folder / 'work',
        '--show-dir',
        folder / 'pictures',
        '--out',
        folder / 'out.json',
        '--cfg-options',
        f'data_root={shapes_root}',
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope='module', params=[DETECTOR, SEGMENTOR], ids=['detector', 'segmentor'])
def run(request, run_tool, shapes_root, tmp_path_factory):
    """A short training: what it printed, and where it wrote."""
    work_dir = tmp_path_factory.mktemp('work')
    args = [request.param, '--work-dir', work_dir, *options(shapes_root, 12)]
    done = run_tool('train.py', *args)
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, work_dir, done.stdout + done.stderr


def test_training_lowers_the_loss(run):
    _, work_dir, _ = run
    history = losses(work_dir)
    assert sorted(history) == list(range(1, 13))
    assert sum(history[i] for i in (10, 11, 12)) < 0.9 * sum(history[i] for i in (1, 2, 3))


def test_training_ends_with_the_table_and_the_places(run):
    config, work_dir, output = run
    report = output[output.index('The training is finished.') :]
    assert ('boxes' in report and 'masks' in report) if config == DETECTOR else 'mIoU' in report
    places = dict(line.split(None, 1) for line in report.splitlines() if str(work_dir) in line)
    assert Path(places['checkpoint']) == work_dir / 'iter_12.pth'
    assert Path(places['checkpoint']).is_file()
    assert 'The training is finished.' in Path(places['log']).read_text()
    assert re.search(r'eta: \d:\d\d:\d\d', output)
    assert 'paramwise_options' not in output
    notice = 'mmcv has no compiled operators'
    assert Path(places['log']).read_text().count(notice) == mmcv_ops.in_force()


def test_validation_draws_pictures_with_ground_truth_and_prediction(run):
    _, work_dir, _ = run
    pictures = sorted((work_dir / 'pictures').glob('*.png'))
    assert len(pictures) == NUM_VAL
    assert cv2.imread(str(pictures[0])).shape == (320, 640, 3)


def test_resume_goes_on_where_the_training_ended(run, run_tool, shapes_root):
    config, work_dir, _ = run
    done = run_tool(
        'train.py', config, '--work-dir', work_dir, '--resume', *options(shapes_root, 14)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(losses(work_dir)) == list(range(1, 15))
    assert (work_dir / 'iter_14.pth').is_file()


@pytest.mark.parametrize('run', [SEGMENTOR], ids=['segmentor'], indirect=True)
def test_resume_takes_the_weights_of_the_checkpoint(run, run_tool, shapes_root, tmp_path):
    config, work_dir, _ = run
    checkpoint = torch.load(work_dir / 'iter_12.pth', weights_only=False)
    bias = checkpoint['state_dict']['decode_head.conv_seg.bias']
    bias.copy_(torch.tensor([0.0, 0.0, 0.0, 100.0]))
    torch.save(checkpoint, tmp_path / 'iter_12.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_12.pth'))
    arguments = ['--work-dir', tmp_path, '--resume', *options(shapes_root, 13)]
    arguments += [f'pretrained={tmp_path}/gone.pth']  # of the first start, no longer needed
    done = run_tool('train.py', config, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    resumed = torch.load(tmp_path / 'iter_13.pth', weights_only=False)['state_dict']
    assert torch.allclose(resumed['decode_head.conv_seg.bias'], bias, atol=0.1)

    del checkpoint['state_dict']['decode_head.conv_seg.bias']  # a head, which load_from may lack
    torch.save(checkpoint, tmp_path / 'iter_13.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_13.pth'))
    done = run_tool('train.py', config, *arguments)
    assert_refused(done, 'does not hold the weights of this model (1 tensors differ)')


@pytest.mark.parametrize('run', [SEGMENTOR], ids=['segmentor'], indirect=True)
def test_averaged_weights_are_tested_and_resumed(run, run_tool, shapes_root, tmp_path):
    config, _, _ = run
    path = tmp_path / 'own.py'
    path.write_text(f"_base_ = '{ROOT / config}'\ncustom_hooks = [dict(type='EMAHook')]\n")
    work_dir = tmp_path / 'work'
    for number, arguments in ((1, []), (2, ['--resume'])):
        arguments += ['--work-dir', work_dir, *options(shapes_root, number)]
        done = run_tool('train.py', path, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
    tested = evaluate(run_tool, path, work_dir / 'iter_2.pth', shapes_root, tmp_path)
    row = next(line for line in done.stdout.splitlines() if line.startswith('mIoU'))
    assert row in tested


def test_testing_a_checkpoint_repeats_the_metrics_of_its_training(
    run, run_tool, shapes_root, tmp_path
):
    config, work_dir, output = run
    tested = evaluate(run_tool, config, work_dir / 'iter_12.pth', shapes_root, tmp_path)
    rows = [line for line in output.splitlines() if line.startswith(('boxes', 'masks', 'mIoU'))]
    assert rows
    for row in rows:
        assert row in tested
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


# After 12 iterations a detector finds nothing, whatever its weights.
@pytest.mark.parametrize('run', [SEGMENTOR], ids=['segmentor'], indirect=True)
@pytest.mark.parametrize('layout', ['model', 'mmseg 0'])
def test_testing_evaluates_the_weights_of_the_checkpoint(
    run, run_tool, shapes_root, tmp_path, layout
):
    config, work_dir, _ = run
    checkpoint = torch.load(work_dir / 'iter_12.pth', weights_only=False)
    state = checkpoint['state_dict']
    bias = torch.tensor([0.0, 0.0, 0.0, 100.0])  # of the classes: triangles everywhere
    state['decode_head.conv_seg.bias'].copy_(bias)
    state['backbone.cls_token'] = torch.zeros(1, 1, 128)  # as in a release
    layouts = {
        'model': {'model': state},  # which mmengine would not unwrap
        'mmseg 0': {
            'meta': {'mmseg_version': '0.11.0', 'CLASSES': ('wall',), 'PALETTE': [[1, 2, 3]]},
            'state_dict': state,
            'optimizer': {'state': {0: {'step': 3}}, 'param_groups': [{'lr': 6e-5}]},
        },
    }
    torch.save(layouts[layout], tmp_path / 'triangles.pth')
    output = evaluate(run_tool, config, tmp_path / 'triangles.pth', shapes_root, tmp_path)
    iou, accuracy = re.search(r'triangle +\| +([\d.]+) +\| +([\d.]+) ', output).groups()
    assert float(iou) > 0
    assert float(accuracy) == 100


def test_a_config_of_others_is_tested_with_pictures(run_tool, run, shapes_root, tmp_path):
    """One without our hooks, as a user brings it."""
    config, work_dir, _ = run
    cfg = Config.fromfile(ROOT / config)
    del cfg.default_hooks.pictures, cfg.default_hooks.report
    cfg.dump(tmp_path / 'own.py')
    output = evaluate(
        run_tool, tmp_path / 'own.py', work_dir / 'iter_12.pth', shapes_root, tmp_path
    )
    assert 'The test is finished.' in output
    assert len(list((tmp_path / 'pictures').glob('*.png'))) == NUM_VAL


def test_missing_data_is_said_before_anything_is_written(run_tool, tmp_path):
    done = run_tool(
        'train.py',
        'configs/mask_rcnn_xcit_s12_8_3x.py',
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        f'data_root={tmp_path}/coco',
    )
    assert_refused(done, f'train data: folder {tmp_path}/coco is missing')
    assert 'cocodataset.org' in done.stderr
    assert not (tmp_path / 'work').exists()


def test_weights_to_start_from_that_are_missing_are_refused(run_tool, shapes_root, tmp_path):
    done = run_tool(
        'train.py',
        DETECTOR,
        '--work-dir',
        tmp_path / 'work',
        *options(shapes_root, 2),
        f'load_from={tmp_path}/gone.pth',
    )
    assert_refused(done, 'gone.pth does not exist')
    assert not (tmp_path / 'work').exists()


def test_a_folder_that_cannot_be_written_to_is_refused(run_tool, shapes_root, tmp_path):
    (tmp_path / 'file').touch()
    done = run_tool('train.py', DETECTOR, '--work-dir', tmp_path / 'file', *options(shapes_root, 2))
    assert_refused(done, f'the folder {tmp_path}/file cannot be written to (FileExistsError')


def test_resume_without_a_checkpoint_is_refused(run_tool, shapes_root, tmp_path):
    done = run_tool(
        'train.py', DETECTOR, '--work-dir', tmp_path, '--resume', *options(shapes_root, 2)
    )
    assert_refused(done, f'{tmp_path} holds no checkpoint')


def test_a_missing_checkpoint_is_refused(run_tool, shapes_root, tmp_path):
    done = run_tool(
        'test.py', DETECTOR, tmp_path / 'gone.pth', '--cfg-options', f'data_root={shapes_root}'
    )
    assert_refused(done, 'gone.pth does not exist')


def test_the_checkpoint_of_another_model_is_refused(run_tool, shapes_root, tmp_path):
    torch.save({'state_dict': {'backbone.conv1.weight': torch.zeros(3)}}, tmp_path / 'other.pth')
    done = run_tool(
        'test.py',
        DETECTOR,
        tmp_path / 'other.pth',
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        f'data_root={shapes_root}',
    )
    assert_refused(done, 'does not hold the weights of this model')
    assert 'the file has no XCiT (backbone.conv1.weight (3,)); the model has an XCiT' in done.stderr


def test_weights_of_another_arch_are_refused(run_tool, shapes_root, tmp_path):
    torch.save({'model': XCiT('t12', 16).state_dict()}, tmp_path / 't12.pth')
    done = run_tool(
        'train.py',
        DETECTOR,
        '--work-dir',
        tmp_path / 'work',
        *options(shapes_root, 2),
        f'pretrained={tmp_path}/t12.pth',
    )
    assert_refused(done, f'{tmp_path}/t12.pth does not hold the weights of this model')
    assert '192 channels' in done.stderr


@pytest.mark.parametrize('run', [SEGMENTOR], ids=['segmentor'], indirect=True)
def test_a_checkpoint_with_code_is_read_with_the_flag_alone(run, run_tool, shapes_root, tmp_path):
    config, work_dir, _ = run
    checkpoint = torch.load(work_dir / 'iter_12.pth', weights_only=False)
    checkpoint['meta']['hook'] = os.getcwd  # stands for any function
    torch.save(checkpoint, tmp_path / 'code.pth')
    arguments = ['--work-dir', tmp_path / 'work', '--cfg-options', f'data_root={shapes_root}']
    done = run_tool('test.py', config, tmp_path / 'code.pth', *arguments)
    assert_refused(done, 'more than weights (posix.getcwd)')
    done = run_tool('test.py', config, tmp_path / 'code.pth', '--trust-checkpoint', *arguments)
    assert done.returncode == 0, done.stderr[-3000:]


def test_other_classes_are_refused_before_anything_is_written(run_tool, shapes_root, tmp_path):
    root = tmp_path / 'shapes'
    shutil.copytree(shapes_root, root)
    path = root / 'coco/annotations/instances_val2017.json'
    path.write_text(path.read_text().replace('"triangle"', '"star"'))
    done = run_tool('train.py', DETECTOR, '--work-dir', tmp_path / 'work', *options(root, 2))
    assert_refused(done, 'has the 3 classes (circle, square, star), the config the 3 classes (circ')
    assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize('split', ['training', 'validation'])
def test_a_label_of_no_class_stops_with_its_file(run_tool, shapes_root, tmp_path, split):
    root = tmp_path / 'shapes'
    shutil.copytree(shapes_root, root)
    for path in (root / 'ade/annotations' / split).glob('*.png'):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        labels[5, 5] = 77
        cv2.imwrite(str(path), labels)
    done = run_tool('train.py', SEGMENTOR, '--work-dir', tmp_path / 'work', *options(root, 1))
    assert_refused(done, f'{root}/ade/annotations/{split}/')
    assert 'the label 77 is outside 1..4, the 4 classes of the config' in done.stderr


def test_a_real_segmentor_trains_and_is_evaluated(run_tool, shapes_root, tmp_path):
    """Data that has ADE20k's layout, and four of its 150 labels."""
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


def own_config(tmp_path: Path) -> Path:
    """The config of docs/own_data.md, which lies in the root of the clone."""
    page = (ROOT / 'docs' / 'own_data.md').read_text()
    start = page.index("_base_ = 'configs/mask_rcnn")
    text = page[start : page.index('```', start)]
    assert len(text.splitlines()) == 10
    path = tmp_path / 'own.py'
    path.write_text(text.replace("'configs/", f"'{ROOT}/configs/"))
    return path


def test_a_released_detector_is_fine_tuned_on_other_classes(run_tool, shapes_root, tmp_path):
    path = own_config(tmp_path)
    cfg = Config.fromfile(path)
    released = Config.fromfile(ROOT / 'configs/mask_rcnn_xcit_t12_16_3x.py')
    assert cfg.load_from.endswith('coco/maskrcnn_xcit_tiny_12_p16.pth')
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    released.model.backbone.init_cfg = None
    source = MODELS.build(released.model).state_dict()
    checkpoint = {
        'meta': {'mmdet_version': '2.11.0', 'CLASSES': ('person',), 'epoch': 36},
        'state_dict': source,
        'optimizer': {'state': {}, 'param_groups': []},
    }
    torch.save(checkpoint, tmp_path / 'released.pth')
    done = run_tool(
        'train.py',
        path,
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        f'data_root={shapes_root}/coco',
        f'load_from={tmp_path}/released.pth',
        'train_cfg.max_iters=1',
        'train_dataloader.batch_size=1',
        'val_dataloader.dataset.pipeline.1.scale=(320,320)',
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    (anew,) = re.findall(r'These start anew.*: (.*)', output)
    assert anew.split(', ') == [
        'roi_head.bbox_head.fc_cls',
        'roi_head.bbox_head.fc_reg',
        'roi_head.mask_head.conv_logits',
    ]
    assert f'Loaded {len(source) - 6} of the {len(source)} tensors' in output
    trained = torch.load(tmp_path / 'work/iter_1.pth', weights_only=False)['state_dict']
    weights = dict(MODELS.build(released.model).named_parameters())
    for name in weights:  # one step of the warm-up moves them by next to nothing
        if name.rpartition('.')[0] not in anew:
            assert torch.allclose(trained[name], source[name], atol=1e-6), name
    assert len(trained['roi_head.bbox_head.fc_cls.weight']) == 4


def test_weights_for_the_backbone_and_for_all_of_it_are_refused(run_tool, shapes_root, tmp_path):
    for name in ('a.pth', 'b.pth'):
        (tmp_path / name).touch()
    weights = [f'pretrained={tmp_path}/a.pth', f'load_from={tmp_path}/b.pth']
    done = run_tool('train.py', DETECTOR, *options(shapes_root, 2), *weights)
    assert_refused(done, f'pretrained={tmp_path}/a.pth and load_from={tmp_path}/b.pth')


def test_metrics_are_not_written_to_a_folder(run_tool, shapes_root, tmp_path):
    (tmp_path / 'a.pth').touch()
    data = ['--cfg-options', f'data_root={shapes_root}']
    done = run_tool('test.py', DETECTOR, tmp_path / 'a.pth', '--out', tmp_path, *data)
    assert_refused(done, f'--out {tmp_path}: a folder')


def test_weights_without_the_backbone_of_the_model_are_not_fine_tuned(
    run_tool, shapes_root, tmp_path
):
    torch.save(XCiT('n12', 16).state_dict(), tmp_path / 'backbone.pth')
    arguments = [*options(shapes_root, 2), f'load_from={tmp_path}/backbone.pth']
    done = run_tool('train.py', DETECTOR, '--work-dir', tmp_path / 'work', *arguments)
    assert_refused(done, 'does not hold the weights of this model')


def test_a_checkpoint_is_converted(run_tool, tmp_path):
    model = XCiT('n12', 16)
    torch.save(
        {'teacher': {f'backbone.{k}': v for k, v in model.state_dict().items()}}, tmp_path / 'a'
    )
    done = run_tool('convert_checkpoint.py', tmp_path / 'a', tmp_path / 'b.pth')
    assert done.returncode == 0
    assert 'an XCiT of 12 layers, 128 channels, 4 heads and patch size 16' in done.stdout
    assert_refused(
        run_tool('convert_checkpoint.py', tmp_path / 'a', tmp_path / 'b.pth'), 'already exists'
    )


def test_a_missing_config_is_refused(run_tool):
    assert_refused(run_tool('train.py', 'configs/gone.py'), 'gone.py does not exist')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--cfg-options', 'data_root'], 'not of the form NAME=VALUE'),
        (['--cfg-options', 'model.backbone.arch=b12'], "arch='b12' is not one of"),
        (['--cfg-options', 'model.neck.in_channels=[1,2'], 'a bracket is not closed'),
        (['--launcher', 'pytorch'], 'torchrun'),
        (['--launcher', 'slurm'], 'tools/slurm_train.sh'),
        (['--launcher', 'mpi'], 'start it with mpirun'),
    ],
)
def test_a_wrong_argument_is_refused(run_tool, shapes_root, tmp_path, arguments, message):
    if '--launcher' in arguments and torch.cuda.is_available():
        pytest.skip('the launchers without a GPU')
    if '--cfg-options' not in arguments:
        arguments = [*arguments, '--cfg-options']
    done = run_tool(
        'train.py', DETECTOR, '--work-dir', tmp_path, *arguments, f'data_root={shapes_root}'
    )
    assert_refused(done, message)


@pytest.mark.skipif(torch.cuda.is_available(), reason='the launchers without a GPU')
def test_a_launcher_that_needs_gpus_is_refused_where_there_are_none(
    run_tool, shapes_root, tmp_path, monkeypatch
):
    monkeypatch.setenv('OMPI_COMM_WORLD_RANK', '0')  # as under mpirun
    done = run_tool(
        'train.py',
        DETECTOR,
        '--work-dir',
        tmp_path,
        '--launcher',
        'mpi',
        '--cfg-options',
        f'data_root={shapes_root}',
    )
    assert_refused(done, '--launcher mpi needs GPUs; without them use pytorch')


def test_an_interruption_is_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        cli.run_tool(interrupted)
    assert caught.value.code == 130
    assert capsys.readouterr().err.endswith('interrupted; what was written stays\n')


@pytest.mark.parametrize('tool', ['convert_checkpoint.py', 'make_shapes.py'])
def test_a_file_that_is_larger_than_allowed_is_a_line(monkeypatch, capfd, tmp_path, tool):
    source, target = tmp_path / 'source.pth', tmp_path / 'target'
    torch.save(XCiT(arch='n12').state_dict(), source)
    arguments = [target] if tool == 'make_shapes.py' else [source, target]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))  # as by ulimit -f
    try:
        code, _, error = call_tool(monkeypatch, capfd, tool, *arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert 'File too large' in error.splitlines()[-1]
    assert 'Traceback' not in error
    assert list(tmp_path.iterdir()) == [source]


def printed(function: Callable[[], object], output: int) -> int:
    """The exit code of what run_tool makes of a function that prints to a descriptor."""
    child = os.fork()
    if not child:
        code = 1
        try:
            for stream in (
                sys.__stdout__,
                sys.__stderr__,
            ):  # writes what is left
                stream.reconfigure(encoding='ascii', errors='strict')
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            cli.run_tool(function)
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_nobody_reads_ends_no_tool(tmp_path):
    """As in tools/train.py ... | head -1."""

    def work() -> None:
        for _ in range(3):
            print('x' * 10**5, flush=True)
            print('x' * 10**5, file=sys.stderr)
        (tmp_path / 'result').touch()

    read, write = os.pipe()
    os.close(read)
    assert printed(work, write) == 0
    os.close(write)
    assert (tmp_path / 'result').exists()


def test_what_the_terminal_cannot_show_is_escaped(tmp_path):
    with (tmp_path / 'output').open('wb') as file:
        assert printed(lambda: print('é', '\udcc3'), file.fileno()) == 0
    assert (tmp_path / 'output').read_text() == '\\xe9 \\udcc3\n'


def test_the_first_seconds_of_a_tool_are_interrupted_with_a_line():
    """Ctrl-C as PyTorch is about to be imported, which takes long."""
    for tool in (ROOT / 'tools').glob('[a-z]*.py'):
        assert 'with imports():' in tool.read_text()
    program = f"""
import os, runpy, signal, sys

class Finder:
    def find_spec(name, *args):
        if name == 'torch':
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
runpy.run_path({str(tool)!r}, run_name='__main__')
"""
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, f'{tool}: interrupted\n')


def test_the_tools_are_executable_as_they_stand():
    tools = [*(ROOT / 'tools').glob('[a-z]*.py'), *(ROOT / 'tools').glob('*.sh')]
    assert len(tools) == 20
    for tool in tools:
        assert tool.stat().st_mode & 0o111, tool
