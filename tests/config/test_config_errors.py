"""Wrong values that only the packages below notice: one sentence names the part and the value."""

import errno
import re
import signal
from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.random_weights import DETECTOR as WEIGHTS
from helpers.toy import toy_runner
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import MODELS

from xcit_mm.base.errors import ConfigError, UserError
from xcit_mm.config.build_model import build_model
from xcit_mm.config.config_errors import config_errors
from xcit_mm.config.load import load_config
from xcit_mm.train.hooks.interrupt import SIGNALS

DETECTOR, SEGMENTOR, DINO, MASK2FORMER = (
    ROOT / f'configs/{name}_xcit_n12_16_shapes.py'
    for name in ('mask_rcnn', 'sem_fpn', 'dino', 'mask2former_instance')
)
QUICK = ('train_cfg.max_iters=1', 'train_dataloader.batch_size=1')
QUICK += tuple(f'{split}_dataloader.num_workers=0' for split in ('train', 'val'))
PIPELINE = 'train_dataloader.dataset.pipeline'
HEAD = 'model.decode_head'

# The option, what fails, and, where it is found while the model is built, what is the matter.
BUILT = [
    (DETECTOR, 'model.neck.num_outs=2', r'model\.neck \(FPN\) fails \(AssertionError: assert num'),
    (DETECTOR, 'optim_wrapper=abc', "optim_wrapper='abc' is not a dict"),
    (DETECTOR, 'custom_hooks=abc', "custom_hooks='abc' is not a list of dicts"),
    (DETECTOR, 'custom_hooks=[abc]', r"custom_hooks\.0='abc' is not a dict"),
    (DETECTOR, 'default_scope=mmdett', "default_scope='mmdett' is not one of .*mean mmdet"),
    (DETECTOR, 'optim_wrapper.optimizer.lr=abc', 'optim_wrapper.* fails'),
    (DETECTOR, 'optim_wrapper.optimizer.type=AdamWW', r'did you mean AdamW\?'),
    (
        DETECTOR,
        'optim_wrapper.constructor=MergedGroupConstructor',
        r'has constructor=.*; did you mean MergedGroupsConstructor\?',
    ),
    (DETECTOR, 'train_dataloader.num_workers=-1', 'train_dataloader fails .*non-negative'),
    (DETECTOR, f'{PIPELINE}.2.chance=0.5', r'pipeline\.2: RandomFlip has no argument chance'),
    (DETECTOR, 'default_hooks.logger.interval=abc', r'default_hooks\.logger \(LoggerHook\) fails'),
    (DETECTOR, 'randomness.seed=abc', 'a part fails'),
    (DETECTOR, 'default_hooks.checkpoint.max_keep_ckpts=abc', r'default_hooks\.checkpoint \(Whole'),
    (DETECTOR, 'val_dataloader.dataset.metas=1', r'val_dataloader\.dataset \(.* fails .*metas'),
    (SEGMENTOR, f'{PIPELINE}.1.type=RandomFlip', r'dataset .* fails .*; the cause may be --cfg-op'),
]
# What fails in the first step, or in the evaluation after it.
RUN = [
    (DETECTOR, 'model.neck.out_channels=100', r'model\.rpn_head \(\w+\) fails \(RuntimeError'),
    (DETECTOR, 'model.train_cfg.rpn.assigner.pos_iou_thr=abc', r'model\.rpn_head .* fails'),
    (DETECTOR, 'model.test_cfg.rcnn.score_thr=abc', r'model\.test_cfg\.rcnn.* fails'),
    (DETECTOR, 'val_dataloader.dataset.pipeline.1.scale=[a,3]', r'TypeError: .* in Resize\(scale'),
    (SEGMENTOR, 'optim_wrapper.clip_grad.max_norm=abc', r'optim_wrapper \(.*\) fails'),
    (SEGMENTOR, f'{HEAD}.loss_decode.loss_weight=abc', r'loss_decode \(CrossEntropyLoss\) fails'),
]


@pytest.fixture(autouse=True)
def _signals():
    """InterruptHook gives them back at the end of a training."""
    get_temp_dir()  # that data workers of later tests use: not in the folder of one test
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(('config', 'option', 'message'), [*BUILT, *RUN])
def test_a_wrong_value_is_one_sentence_that_names_it(
    monkeypatch, capfd, shapes_root, tmp_path, config, option, message
):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    # mmengine shares the log between runs of one name and second.
    options = f'data_root={shapes_root}', *QUICK, f'experiment_name={tmp_path.name}', option
    arguments = '--work-dir', tmp_path / 'run', '--cfg-options', *options
    code, output, error = call_tool(monkeypatch, capfd, 'train.py', config, *arguments)
    sentence = error.splitlines()[-1]
    assert code == 2 and 'Config:' not in output + error
    assert re.search(message, sentence), sentence
    assert 'Traceback' not in error
    name, _, value = option.partition('=')
    assert name.rpartition('.')[2] in sentence or ' argument ' in sentence
    assert value.strip('[]').split(',')[0] in sentence or ' argument ' in sentence
    if 'the traceback is in ' in sentence:
        log = Path(sentence.rpartition('the traceback is in ')[2])
        assert log.read_text().count('Traceback (most recent call last)') >= 2
        if not option.startswith('randomness'):
            assert log.is_relative_to(tmp_path / 'run')
            assert f'The environment, the config and the hooks are in {log}' in output + error
            assert 'System environment' in log.read_text() and "type='XCiT'" in log.read_text()


@pytest.mark.parametrize(
    ('config', 'name', 'value', 'message'),
    [
        (DETECTOR, 'model.backb.arch', 't12', r'no argument backb: .* did you mean backbone'),
        (DETECTOR, 'model.neck', 'abc', r'model \(MaskRCNN\) fails'),
        (DETECTOR, 'model.data_preprocessor.mean', [1, 'a', 3], r'preprocessor \(DetD.* fails'),
        (SEGMENTOR, f'{HEAD}.feature_strides', [4, 8], r'head \(FPNHead\) fails \(AssertionError'),
        (DINO, 'model.encoder.layer_cfg.self_attn_cfg.embed_dims', 100, 'layer_cfg fails'),
        (MASK2FORMER, 'model.panoptic_head.feat_channels', 100, 'pixel_decoder.* fails'),
    ],
)
def test_a_wrong_value_of_a_model_is_named(config, name, value, message):
    options = {name: value}
    with pytest.raises(UserError, match=message) as error:
        build_model(load_config(config, options), 'meta', options)
    assert f'{name}={value}' in str(error.value) or 'no argument' in message


@pytest.mark.parametrize(('name', 'value'), [('neck.num_outs', 2), ('rpn_head.feat_channels', 'a')])
def test_values_of_the_file_are_named_without_options(name, value):
    cfg = load_config(DETECTOR, {f'model.{name}': value})
    with pytest.raises(ConfigError, match=rf'the config has .*model\.{name}={value!r}'):
        build_model(cfg, 'meta')


def test_options_of_other_parts_are_not_blamed():
    wrong, other = {'model.neck.num_outs': 2}, {'train_cfg.max_iters': 7}
    cfg = load_config(DETECTOR, wrong | other)
    with pytest.raises(ConfigError, match=r'the config has .*model\.neck\.num_outs=2') as error:
        build_model(cfg, 'meta', other)
    assert '--cfg-options' not in str(error.value)


SCORE, LEVELS = 'model.test_cfg.rcnn.score_thr=abc', 'model.neck.num_outs=2'


@pytest.mark.parametrize(
    ('tool', 'option', 'arguments'),
    [
        ('test.py', SCORE, 'CONFIG WEIGHTS --work-dir OUT --cfg-options data_root=DATA'),
        ('infer.py', SCORE, 'CONFIG WEIGHTS DATA/coco/val2017 --out OUT --cfg-options'),
        ('export.py', LEVELS, 'CONFIG --out OUT.onnx --cfg-options'),
        ('export.py', SCORE, 'CONFIG --out OUT.onnx --cfg-options'),
        ('get_flops.py', LEVELS, 'CONFIG --size 64 64 --cfg-options'),
        ('../benchmarks/run.py', LEVELS, '--models OWN --what detector --sizes 64x64 --out OUT'),
    ],
)
def test_other_tools_name_the_value_and_write_the_traceback_to_a_file(
    monkeypatch, capfd, shapes_root, tmp_path, weights, tool, option, arguments
):
    if tool == 'export.py':
        pytest.importorskip('onnx')
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    own = tmp_path / 'own.py'
    own.write_text(f"_base_ = '{DETECTOR}'\nmodel = dict(neck=dict(num_outs=2))")
    paths = dict(CONFIG=DETECTOR, WEIGHTS=weights[WEIGHTS], DATA=shapes_root, OWN=own)
    for name, path in (paths | dict(OUT=tmp_path / 'out')).items():
        arguments = arguments.replace(name, str(path))
    words = [*arguments.split(), *([option] if 'cfg-options' in arguments else [])]
    code, _, error = call_tool(monkeypatch, capfd, tool, *words)
    sentence = error.splitlines()[-1]
    assert code == 2
    assert option in sentence and 'Traceback' not in error
    log = Path(sentence.rpartition('; the traceback is in ')[2])
    assert log.is_relative_to(tmp_path)
    assert 'Traceback (most recent call last)' in log.read_text()


class Failing(Hook):
    """Raise an error in an iteration."""

    def __init__(self, error: Exception, iteration: int) -> None:
        self.error, self.iteration = error, iteration

    def before_train_iter(self, runner, **_) -> None:
        if runner.iter == self.iteration:
            raise type(self.error)(*self.error.args)  # without the frames of another test


@pytest.mark.parametrize(
    ('error', 'iteration', 'raised'),
    [
        (ValueError('planted'), 0, ConfigError),
        (ValueError('planted'), 2, ValueError),  # with a gradient of three steps
        (OSError(errno.ENOSPC, 'No space left on device'), 0, OSError),
        (torch.cuda.OutOfMemoryError('CUDA out of memory.'), 0, ConfigError),
    ],
)
@pytest.mark.parametrize('steps', [1, 3])
def test_errors_after_the_first_step_pass_unchanged(tmp_path, error, iteration, raised, steps):
    runner = toy_runner(tmp_path, **{'optim_wrapper.accumulative_counts': steps})
    runner.register_hook(Failing(error, iteration))
    raised = ConfigError if steps == 3 and iteration else raised
    with pytest.raises(raised) as caught, config_errors(runner.cfg):
        runner.train()
    assert isinstance(error, RuntimeError) == ('use fewer images at a time' in str(caught.value))


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        (dict(type='XCiTT'), r"config own.py: part has type='XCiTT', .*; did you mean XCiT\?"),
        (dict(type='Nowhere'), 'which no package registers: check custom_imports'),
        (dict(type='XCiT', patchsize=8), r'config own.py: part: XCiT has no argument patchsize'),
        (dict(type='mmdet.FPN', num_outs=4, out_channels=8), r'mmdet.FPN needs the arg.* in_chan'),
        (
            dict(type='MultibandPreprocessor', base='ImgDataPreprocessor', mean=[0.0]),
            'part: MultibandPreprocessor needs the argument std',
        ),
        (
            dict(type='MultibandPreprocessor', base='ImgDataPreprocessor', mean=[], std=[], a=1),
            'part: MultibandPreprocessor has no argument a',
        ),
    ],
)
def test_a_part_that_cannot_be_built_is_refused_with_its_place(part, message):
    import mmdet.models  # noqa: F401  registers FPN

    cfg = Config(dict(part=part), cfg_text='read already', filename='own.py')
    with pytest.raises(UserError, match=message), config_errors(cfg):
        MODELS.build(cfg.part)


class _Head:
    def loss(self) -> None:
        raise ValueError('planted')


def test_one_of_several_equal_parts_is_named_by_the_part_that_holds_them():
    heads = [dict(type='_Head', number=1), dict(type='_Head', number=2)]  # as in Cascade R-CNN
    cfg = Config(dict(model=dict(roi_head=dict(bbox_head=heads))))
    message = r'model\.roi_head fails .*planted'
    with pytest.raises(ConfigError, match=message), config_errors(cfg):
        _Head().loss()
