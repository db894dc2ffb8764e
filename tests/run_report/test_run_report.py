"""What is read of a run, whatever interrupted it, and what the plots and the page show of it."""

import errno
import json
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.resumed_runs import StopHook  # noqa: F401  registered
from helpers.toy import Toy, toy_runner
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, METRICS, MODELS
from PIL import Image

import xcit_mm
from xcit_mm import UserError
from xcit_mm.engine.hooks.loss_log import _take_back
from xcit_mm.engine.resume import newest_checkpoint
from xcit_mm.run_report import NoRunError, draw_png, read_run, read_runs, reading, write_page
from xcit_mm.run_report.curves import plots

# Lines of a log that no run writes.
WRONG_LINES = (
    *(json.dumps(dict(loss=1.0, iter=place, step=place)) for place in ('7', 7.5, True, -1, 1e308)),
    *(json.dumps(dict(loss=1.0, iter=place, step=place)) for place in (None, [], 2**60)),
    '{"loss": 1.0, "iter": NaN, "step": NaN}',
    json.dumps(dict(loss=1.0, iter='\x1b[2J' * 10**5, step='\x1b[2J' * 10**5)),
    '{"loss": ' + '[' * 100_000,
    '{"loss": 1.0, "iter": ' + '9' * 5000 + ', "step": 1}',
    '7',
    '[]',
    '{"iter": 3, "loss": 0.',
    '\0\0\0',
)
AP = {'coco/bbox_mAP': 0.4, 'coco/bbox_mAP_50': 0.6, 'coco/bbox_mAP_s': -1}


@MODELS.register_module()
class EvaluatedToy(Toy):
    def forward(self, inputs, data_samples=None, mode='loss'):
        if mode == 'loss':
            return super().forward(inputs, data_samples, mode)
        predicted = self.linear(self.norm(torch.stack(inputs).floor()))  # without the noise
        return [dict(value=value) for value in predicted[:, 0].tolist()]


@METRICS.register_module()
class ToyMetric(BaseMetric):
    def process(self, data_batch, data_samples) -> None:
        self.results += [sample['value'] for sample in data_samples]

    def compute_metrics(self, results) -> dict:
        values = np.array(results)
        return dict(mIoU=values.mean(), mAcc=np.float32(values.max()), text='no number')


@HOOKS.register_module()
class ToyPictureHook(Hook):
    def after_val_epoch(self, runner, metrics=None) -> None:
        folder = Path(runner.work_dir, 'pictures')
        folder.mkdir(exist_ok=True)
        for number in range(20):
            Image.new('RGB', (1000, 250), (0, 90, 200)).save(folder / f'{number:02}.png')


def evaluated_run(work_dir, *hooks: str | dict, **kwargs):
    """A run of eight iterations or of two epochs of five, with a validation after every second."""
    names = 'FiniteHook', 'LossLogHook', *hooks
    loader = dict(
        batch_size=1,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        dataset=dict(type='ToyDataset'),
    )
    settings = {
        'model.type': 'EvaluatedToy',
        'skip_bad_in_evaluation': False,
        'val_dataloader': loader,
        'val_evaluator': dict(type='ToyMetric'),
        'val_cfg': dict(),
        'train_cfg.val_interval': 1 if kwargs.get('by_epoch') else 2,
        'custom_hooks': [dict(type=n) if isinstance(n, str) else n for n in names],
    }
    return toy_runner(work_dir, **settings | kwargs)


def interrupted_and_resumed(work_dir, hook: str, after: int, **kwargs) -> None:
    with pytest.raises(RuntimeError, match='planted'):
        evaluated_run(work_dir, hook, dict(type='StopHook', after=after), **kwargs).train()
    path, _, _ = newest_checkpoint(str(work_dir), trusted=False)
    evaluated_run(work_dir, hook, resume=True, load_from=str(path), **kwargs).train()


def log_of(work_dir: Path) -> str:
    return ''.join(path.read_text() for path in work_dir.glob('*/*.log'))


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, *lines: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{json.dumps(line)}\n' for line in lines))


def losses(*steps: int, start: float = 0) -> list[dict]:
    """Lines of mmengine's scalars.json."""
    return [dict(lr=0.1, loss=start + s, loss_a=1.0, loss_b=2.0, iter=s, step=s) for s in steps]


@pytest.fixture(scope='module')
def toy_run(tmp_path_factory) -> Path:
    """The folder of a whole run of the toy."""
    work_dir = tmp_path_factory.mktemp('runs') / 'a <b>bold</b> run'
    log = {'log_level': 'INFO', 'log_processor': dict(window_size=1)}
    evaluated_run(work_dir, 'ToyPictureHook', 'ReportHook', **log).train()
    return work_dir


@pytest.mark.parametrize('kwargs', [dict(), dict(by_epoch=True)], ids=['iterations', 'epochs'])
@pytest.mark.parametrize('after', [5, 6])
def test_every_step_and_validation_is_there_once_over_a_resume(tmp_path, kwargs, after):
    """In the logs and for TensorBoard; the sixth iteration is followed by a validation."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    evaluated_run(tmp_path / 'whole', **kwargs).train()
    kwargs_of_cut = kwargs | {'default_hooks.checkpoint.interval': 4}
    interrupted_and_resumed(tmp_path / 'cut', 'TensorBoardHook', after, **kwargs_of_cut)
    for name in ('losses.jsonl', 'metrics.jsonl'):
        assert (tmp_path / 'whole' / name).read_text() == (tmp_path / 'cut' / name).read_text()
    steps = [line['iter'] for line in lines_of(tmp_path / 'cut' / 'metrics.jsonl')]
    assert steps == ([5, 10] if kwargs else [2, 4, 6, 8])

    events = EventAccumulator(str(tmp_path / 'cut' / 'tensorboard'))
    events.Reload()
    for file, prefix in (('losses.jsonl', 'train'), ('metrics.jsonl', 'val')):
        logged = lines_of(tmp_path / 'cut' / file)
        for name in logged[0].keys() - {'iter', 'epoch'}:
            seen = {event.step: event.value for event in events.Scalars(f'{prefix}/{name}')}
            assert len(seen) == len(events.Scalars(f'{prefix}/{name}'))
            assert seen == pytest.approx({line['iter']: line[name] for line in logged})


def test_a_new_run_in_the_folder_does_not_mix_with_the_one_before(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in (4, 2):
        evaluated_run(tmp_path, 'TensorBoardHook', steps=steps).train()
    run = read_run(tmp_path, 'a')
    assert [line['iter'] for line in run.losses] == [1, 2]
    assert [line['iter'] for line in run.metrics] == [2]
    events = EventAccumulator(str(tmp_path / 'tensorboard'))
    events.Reload()
    assert [event.step for event in events.Scalars('train/loss')] == [1, 2]
    assert [event.step for event in events.Scalars('val/mIoU')] == [2]


@pytest.mark.parametrize(('max_iters', 'steps'), [(8, [2, 4, 5, 8]), (3, [2, 4])])
def test_the_last_validation_stays_where_a_resume_has_none_at_its_step(tmp_path, max_iters, steps):
    """For TensorBoard, whether the run goes on or is over."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    evaluated_run(tmp_path, 'TensorBoardHook', steps=4).train()
    path, _, _ = newest_checkpoint(str(tmp_path), trusted=False)
    go_on = {'resume': True, 'load_from': str(path), 'train_cfg.val_interval': 5}
    evaluated_run(tmp_path, 'TensorBoardHook', steps=max_iters, **go_on).train()
    events = EventAccumulator(str(tmp_path / 'tensorboard'))
    events.Reload()
    logged = lines_of(tmp_path / 'metrics.jsonl')
    assert [line['iter'] for line in logged] == steps
    seen = [(event.step, event.value) for event in events.Scalars('val/mIoU')]
    assert seen == [(line['iter'], pytest.approx(line['mIoU'])) for line in logged]


def test_a_run_tells_what_it_is(toy_run):
    run = read_run(toy_run, 'a')
    assert run.num_iters == run.facts['iterations'] == 8
    assert run.facts['parameters'] == dict(all=7, norm=4, linear=3, trained=7)
    assert torch.__version__.startswith(run.facts['versions']['torch'])
    assert run.facts['versions']['xcit_mm'] == xcit_mm.__version__
    assert run.facts['images a step'] == 2
    assert 'ToyDataset' in run.config
    assert len(run.pictures) == 16


def test_the_log_says_where_the_report_is(toy_run):
    assert f'report      {toy_run / "report.html"}' in log_of(toy_run)


def test_a_training_does_not_fail_over_its_report(tmp_path):
    class InTheWay(Hook):
        def after_train_iter(self, *args, **kwargs) -> None:
            (tmp_path / 'report.html').mkdir(exist_ok=True)

    runner = evaluated_run(tmp_path, 'ReportHook', log_level='INFO', steps=2)
    runner.register_hook(InTheWay())
    runner.train()
    assert 'report      not drawn (UserError: ' in log_of(tmp_path)
    assert not list(tmp_path.glob('.*'))


def test_a_run_without_our_logs_is_read_the_same(toy_run, tmp_path):
    (scalars,) = toy_run.glob('*/vis_data/scalars.json')
    (tmp_path / 'now/vis_data').mkdir(parents=True)
    (tmp_path / 'now/vis_data/scalars.json').write_bytes(scalars.read_bytes())
    ours, theirs = read_run(toy_run, 'a'), read_run(tmp_path, 'a')
    for name in ('loss', 'lr', 'iter'):
        assert [line[name] for line in theirs.losses] == [line[name] for line in ours.losses]
    for name in ('mIoU', 'mAcc', 'iter'):
        assert [line[name] for line in theirs.metrics] == [line[name] for line in ours.metrics]


def test_of_mmengines_files_a_resume_replaces_what_it_did_once_more(tmp_path):
    first, second = (tmp_path / f'2026010{day}_000000/vis_data/scalars.json' for day in (1, 2))
    write_lines(first, *losses(10, 20), dict(mIoU=1.0, step=20), *losses(30, start=9))
    write_lines(second, *losses(30, 40), dict(mIoU=2.0, step=40))
    run = read_run(tmp_path, 'a')
    assert [(line['iter'], line['loss']) for line in run.losses] == [
        (step, step) for step in (10, 20, 30, 40)
    ]
    assert [(line['iter'], line['mIoU']) for line in run.metrics] == [(20, 1), (40, 2)]


def test_of_mmengines_files_a_new_start_replaces_the_run_before(tmp_path):
    for day in (1, 2):
        path = tmp_path / f'2026010{day}_000000/vis_data/scalars.json'
        write_lines(path, *losses(10, 20, start=day), dict(mIoU=float(day), step=20))
    run = read_run(tmp_path, 'a')
    assert [line['loss'] for line in run.losses] == [12, 22]
    assert [line['mIoU'] for line in run.metrics] == [2]


def test_a_validation_that_is_counted_in_epochs_is_placed_at_its_iteration(tmp_path):
    path = tmp_path / 'now/vis_data/scalars.json'
    write_lines(path, *losses(50, 100), dict(AP, step=1), *losses(150, 200), dict(AP, step=2))
    assert [line['iter'] for line in read_run(tmp_path, 'a').metrics] == [100, 200]


def test_what_other_runs_left_in_the_folder_is_none_of_the_run(tmp_path):
    write_lines(tmp_path / 'old/vis_data/scalars.json', *losses(10, 20), dict(mIoU=1.0, step=20))
    write_lines(tmp_path / 'earlier_1/losses.jsonl', *losses(1, 2, 3))
    write_lines(tmp_path / 'losses.jsonl', *losses(5))
    run = read_run(tmp_path, 'a')
    assert [line['iter'] for line in run.losses] == [5] and not run.metrics
    earlier = read_run(tmp_path / 'earlier_1', 'b')
    assert [line['iter'] for line in earlier.losses] == [1, 2, 3]


def test_a_run_that_is_killed_in_a_line_is_read_up_to_it(tmp_path):
    write_lines(tmp_path / 'losses.jsonl', *losses(1, 2))
    with (tmp_path / 'losses.jsonl').open('a') as file:
        file.write('{"iter": 3, "loss": 0.')
    assert [line['iter'] for line in read_run(tmp_path, 'a').losses] == [1, 2]


@pytest.mark.parametrize('line', WRONG_LINES, ids=range(len(WRONG_LINES)))
def test_a_line_of_the_wrong_kind_is_named_wherever_it_is_read(tmp_path, line):
    """By the plots, at a resume and for TensorBoard, from our logs and from mmengine's."""
    ours, theirs = tmp_path / 'a/losses.jsonl', tmp_path / 'b/now/vis_data/scalars.json'
    for path in (ours, theirs):
        write_lines(path, *losses(1))
        with path.open('a') as file:
            file.write(f'{line}\n')
    before = ours.read_bytes()
    runs, problems = read_runs([tmp_path / 'a', tmp_path / 'b'])
    assert not runs
    for path, problem in zip((ours, theirs), problems, strict=True):
        assert re.fullmatch(rf'line 2 of {path} cannot be read \(.*\): remove the .*', str(problem))
        assert len(str(problem)) < 2100 and '\x1b' not in str(problem)
    with pytest.raises(UserError, match='line 2 of '):
        _take_back(ours, 5)
    assert ours.read_bytes() == before


def test_a_training_is_not_resumed_over_a_damaged_log(tmp_path):
    evaluated_run(tmp_path, steps=2).train()
    path, _, _ = newest_checkpoint(str(tmp_path), trusted=False)
    resumed = dict(resume=True, load_from=str(path), steps=3)
    for log in (tmp_path / 'losses.jsonl', tmp_path / 'metrics.jsonl'):
        good = log.read_text()
        log.write_text(f'{{"iter": "one"}}\n{good}')
        with pytest.raises(UserError, match=f'line 1 of {log} cannot be read .* its iter is .one'):
            evaluated_run(tmp_path, **resumed).train()
        assert log.read_text().endswith(good)
        log.write_text(good)
    evaluated_run(tmp_path, **resumed).train()
    assert [line['iter'] for line in read_run(tmp_path, 'a').losses] == [1, 2, 3]


def test_a_line_without_end_is_not_read_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, 'MAX_BYTES', 1000)
    for text in ('{"iter": 1, ' + ' ' * 10_000, '[' * 10_000 + '\n'):
        (tmp_path / 'losses.jsonl').write_text(text)
        with pytest.raises(UserError, match='line 1 of '):
            read_run(tmp_path, 'a')


def test_what_is_no_file_is_not_read(tmp_path):
    makers = os.mkfifo, Path.mkdir, lambda path: path.symlink_to('/dev/zero')
    for number, make in enumerate(makers):
        run = tmp_path / f'{number}'
        write_lines(run / 'now/vis_data/scalars.json', *losses(1))
        make(run / 'metrics.jsonl')
        with pytest.raises(UserError, match=r'metrics\.jsonl is a folder, a pipe or a device'):
            read_run(run, 'a')
        (run / 'metrics.jsonl').rename(tmp_path / f'aside {number}')
        write_lines(run / 'losses.jsonl', *losses(1))
        (run / 'pictures').mkdir()
        for name in ('run.json', 'config.py', 'pictures/0.png'):
            make(run / name)
        read = read_run(run, 'a')
        assert (read.facts, read.config, read.pictures) == ({}, '', [])


def test_names_are_shown_without_what_they_could_do(tmp_path):
    names = ('loss\x1b[2J\x1b]0;title\x07', '<script>alert(1)</script>loss', 'loss' + 'x' * 10**6)
    for run in ('a', 'b'):
        for file in ('losses.jsonl', 'metrics.jsonl'):
            lines = [dict.fromkeys(names, 0.5) | dict(iter=step) for step in (1, 2)]
            write_lines(tmp_path / run / file, *lines)
        facts = dict(zip(('config', 'hardware', 'config_text'), names, strict=True))
        (tmp_path / run / 'run.json').write_text(json.dumps(facts | {names[1]: names[0]}))
    runs, _ = read_runs([tmp_path / 'a', tmp_path / 'b'])
    draw_png(runs, tmp_path / 'out.png')
    write_page(runs[:1], tmp_path / 'out.html')
    page = (tmp_path / 'out.html').read_text()
    assert '\x1b' not in page and '<script>' not in page
    assert '&lt;script&gt;' in page and 'xxx ... xxx' in page


@pytest.mark.parametrize(
    'values', [(1e308, -1e308), (3e38, -3e38), (10**400, 1), (True, 'text'), ([1], {})]
)
def test_values_beyond_all_that_can_be_drawn_are_left_out(tmp_path, values):
    lines = [dict(iter=step, loss=value, lr=0.1) for step, value in enumerate(values)]
    write_lines(tmp_path / 'losses.jsonl', *lines, dict(iter=2**53, loss=1))
    write_lines(tmp_path / 'metrics.jsonl', *(dict(iter=1, mIoU=value) for value in values))
    run = read_run(tmp_path, 'a')
    write_page([run], tmp_path / 'out.html')
    draw_png([run], tmp_path / 'out.png')


def test_a_page_and_a_picture_on_a_full_disk_are_an_error_that_says_so(tmp_path):
    """And what was at their place stays."""
    write_lines(tmp_path / 'run/losses.jsonl', *losses(*range(100)))
    run = read_run(tmp_path / 'run', 'a')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for write, path in ((write_page, tmp_path / 'a.html'), (draw_png, tmp_path / 'a.png')):
        path.write_text('earlier')
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(OSError, match='File too large') as error:
                write([run], path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert error.value.errno == errno.EFBIG
        assert path.read_text() == 'earlier'
    assert len(list(tmp_path.iterdir())) == 3


def test_control_characters_reach_neither_the_console_nor_the_log(tmp_path, capfd):
    runner = evaluated_run(tmp_path, log_level='INFO')
    text = 'of a \x1b[2Jfile ' + 'x' * 5000
    runner.logger.info(f'one {text}')
    runner.logger.warning('two %s\n\tnext \x9b31m %d', text, 3)
    runner.logger.info('100 %')
    printed = capfd.readouterr()
    for shown in (log_of(tmp_path), printed.out + printed.err):
        assert 'one of a ?[2Jfile ' + 'x' * 5000 + '\n' in shown
        assert 'x\n        next ?31m 3\n' in shown and '100 %' in shown
        assert '\x1b[2J' not in shown and '\x9b' not in shown


def test_a_folder_without_a_run_is_named_and_the_others_are_read(tmp_path):
    write_lines(tmp_path / 'work/a/losses.jsonl', *losses(1))
    (tmp_path / 'b').mkdir()
    write_lines(tmp_path / 'begun/losses.jsonl')
    folders = [tmp_path / name for name in ('work/a', 'b', 'missing', 'work', 'begun')]
    runs, problems = read_runs(folders)
    assert [run.folder for run in runs] == folders[:1]
    expected = (
        'b holds no run: neither losses.jsonl nor',
        'missing does not exist',
        f'work holds no run.*did you mean {folders[0]}',
        'begun holds a run of which nothing is logged yet',
    )
    for problem, pattern in zip(problems, expected, strict=True):
        with pytest.raises(UserError, match=pattern):
            raise problem
    assert [isinstance(problem, NoRunError) for problem in problems] == [True, False, True, True]


@pytest.mark.parametrize(
    'facts',
    [
        dict(parameters=None, versions=None, iterations=None, config_text=None),
        dict(parameters=dict(all='many'), versions=['1'], iterations='8', config_text=1),
        dict(parameters=dict(backbone=3)),
        dict(parameters=dict(all=10**400), iterations=10**400, versions=dict(torch=[[]])),
        dict(parameters=dict(all=-1, head=True), iterations=-1, started=dict(at=1)),
        dict(parameters=dict(all=1e308), iterations=1e308, versions={'<b>': None}),
    ],
)
def test_what_is_damaged_beside_the_curves_is_left_out(tmp_path, facts):
    run, out = tmp_path / 'run', tmp_path / 'out.html'
    write_lines(run / 'losses.jsonl', *losses(1))
    (run / 'run.json').write_text(json.dumps({'hardware': 'a <CPU>', **facts}))
    (run / 'config.py').mkdir()
    (run / 'pictures').mkdir()
    for name in ('pictures/gone.png', 'gone.py'):
        (run / name).symlink_to(tmp_path / 'nowhere')
    write_page([read_run(run, 'a')], out)
    assert 'a &lt;CPU&gt;' in out.read_text()


@pytest.mark.parametrize('text', ['[' * 100_000, '{"iterations": ' + '9' * 5000 + '}', '7', '\0'])
def test_facts_that_are_none_are_left_out(tmp_path, text):
    write_lines(tmp_path / 'losses.jsonl', *losses(1))
    (tmp_path / 'run.json').write_text(text)
    assert read_run(tmp_path, 'a').facts == {}


@pytest.mark.filterwarnings('error')
def test_a_validation_before_the_first_iteration_is_drawn(tmp_path):
    write_lines(tmp_path / 'metrics.jsonl', dict(AP, iter=0))
    draw_png([read_run(tmp_path, 'a')], tmp_path / 'out.png')


def test_of_many_metrics_the_first_are_plots_and_the_others_a_table(tmp_path):
    for name, start in (('a', 0), ('b', 1)):
        write_lines(tmp_path / name / 'losses.jsonl', *losses(1, 2))
        of_classes = {f'class {i}': start + i / 1000 for i in range(1203)}
        lines = dict(AP, iter=1, **of_classes), dict(AP, iter=2, **{**of_classes, 'class 14': 0.5})
        write_lines(tmp_path / name / 'metrics.jsonl', *lines)
    (tmp_path / 'b/metrics.jsonl').write_text(json.dumps(dict(AP, iter=2)))
    runs, _ = read_runs([tmp_path / 'a', tmp_path / 'b'])
    titles = [plot.title for plot in plots(runs)]
    assert [title for title in titles if 'class' in title] == [f'class {i}' for i in range(12)]
    write_page(runs, tmp_path / 'out.html')
    page = (tmp_path / 'out.html').read_text()
    rows = re.findall(r'<td>(class \d+)</td>\s*<td>([^<]*)</td>\s*<td>([^<]*)</td>', page)
    assert rows[:3] == [
        (f'class {i}', value, '-') for i, value in ((12, '0.012'), (13, '0.013'), (14, '0.500'))
    ]
    assert len(rows) == 1203 - 12


def test_runs_are_named_by_what_tells_them_apart(tmp_path):
    folders = [tmp_path / name for name in ('x/a', 'y/a', 'y/b')]
    for folder in folders:
        write_lines(folder / 'losses.jsonl', *losses(1))
    assert [run.name for run in read_runs(folders[1:])[0]] == ['a', 'b']
    assert [run.name for run in read_runs(folders)[0]] == ['x/a', 'y/a', 'y/b']


def test_the_plots_of_one_run_and_of_several(tmp_path):
    for name in ('a', 'b'):
        write_lines(tmp_path / name / 'losses.jsonl', *losses(1, 2))
        write_lines(tmp_path / name / 'metrics.jsonl', dict(AP, iter=2))
    runs, _ = read_runs([tmp_path / 'a', tmp_path / 'b'])
    one = {plot.title: {c.label: c.values for c in plot.curves} for plot in plots(runs[:1])}
    assert one == {
        'Loss': {'a': [1, 2]},
        'Box AP': {'AP': [0.4], 'AP50': [0.6]},  # and no small ones: there are no such objects
        'Learning rate': {'a': [0.1, 0.1]},
        'Parts of the loss': {'loss_a': [1, 1], 'loss_b': [2, 2]},
    }
    both = {plot.title: {c.label: c.values for c in plot.curves} for plot in plots(runs)}
    assert both['Box AP'] == {'a': [0.4], 'b': [0.4]}
    assert both['loss_b'] == {'a': [2, 2], 'b': [2, 2]}
    assert list(both) == ['Loss', 'Box AP', 'Learning rate', 'loss_a', 'loss_b']


def test_losses_that_are_not_finite_are_marked_and_not_hidden(tmp_path):
    lines = losses(*range(1, 101))
    for number in (30, 31, 70):
        lines[number]['loss'] = None
    write_lines(tmp_path / 'losses.jsonl', *lines)
    draw_png([read_run(tmp_path, 'a')], tmp_path / 'out.png')
    pixels = np.asarray(Image.open(tmp_path / 'out.png').convert('RGB')).astype(int)
    red = (pixels[..., 0] > 200) & (pixels[..., 1:].max(-1) < 60)
    blue = abs(pixels - (31, 119, 180)).max(-1) < 10
    assert red.sum() > 20 and blue.sum() > 300


def test_names_are_drawn_as_they_are(tmp_path):
    """And not as the formulas that they could be, one of them in error."""
    folders = [tmp_path / name for name in ('_a', r'$\wrong$')]
    for folder in folders:
        write_lines(folder / 'losses.jsonl', *losses(1, 2))
    write_page(read_runs(folders)[0], tmp_path / 'out.html')
    page = (tmp_path / 'out.html').read_text()
    assert r'<td>$\wrong$</td>' in page and '<td>_a</td>' in page


def page_of(browser, path: Path, width: int = 1200):
    """The page as a browser shows it, without a network, and what it complained about."""
    page = browser.new_page(viewport=dict(width=width, height=900), offline=True)
    said, asked = [], []
    page.on('console', lambda message: said.append(message.text))
    page.on('pageerror', lambda error: said.append(str(error)))
    page.on('request', lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    asked = [url for url in asked if not url.startswith(('data:', 'file:'))]
    assert not said and not asked
    return page


def test_the_report_of_a_training_shows_curves_pictures_and_last_metrics(toy_run, browser):
    page = page_of(browser, toy_run / 'report.html')
    assert page.title() == toy_run.name and page.locator('b').count() == 0  # and no bold run
    shown = page.evaluate('[...document.images].map(i => [i.naturalWidth, i.alt])')
    assert len(shown) == 3 + 16 and all(width > 100 for width, _ in shown)
    assert [alt.split(' over')[0] for _, alt in shown[:3]] == [
        'Loss',
        'Segmentation, percent',
        'Learning rate',
    ]
    assert max(width for width, _ in shown) == 960
    last = lines_of(toy_run / 'metrics.jsonl')[-1]
    row = page.locator('.card', has_text='Segmentation, percent').locator('tbody tr').first
    cells = row.locator('td').all_inner_texts()
    assert cells == [toy_run.name, 'last, at 8', f'{last["mIoU"]:.2f}', f'{last["mAcc"]:.2f}']
    text = page.locator('main').text_content()
    assert '8 of 8' in text and 'EvaluatedToy' in text and xcit_mm.__version__ in text
    page.close()


def test_the_report_fits_a_phone(toy_run, browser):
    page = page_of(browser, toy_run / 'report.html', width=360)
    assert page.evaluate('document.documentElement.scrollWidth') == 360
    page.close()


def test_the_page_of_several_runs_holds_the_best_and_the_last(tmp_path, toy_run, browser):
    write_lines(tmp_path / 'losses.jsonl', *losses(1, 2), dict(iter=3, loss=None))
    metrics = dict(AP, iter=2), {'coco/bbox_mAP': 0.3, 'iter': 3}
    write_lines(tmp_path / 'metrics.jsonl', *metrics)
    (tmp_path / 'pictures').mkdir()
    (tmp_path / 'pictures/cut_off.png').write_bytes((toy_run / 'pictures/00.png').read_bytes()[:99])
    os.utime(tmp_path / 'losses.jsonl', (0, 0))
    runs, _ = read_runs([tmp_path, toy_run])
    write_page(runs, tmp_path / 'out.html')
    page = page_of(browser, tmp_path / 'out.html')
    rows = page.locator('.card', has_text='Box AP').first.locator('tbody tr').all_inner_texts()
    name = tmp_path.name
    assert [row.split('\t') for row in rows] == [
        [name, 'last, at 3', '0.300', '-'],
        [name, 'best, at 2', '0.400', '0.600'],
    ]
    rows = page.locator('.card', has_text='Overview').locator('tbody tr').all_inner_texts()
    assert rows[0].split('\t')[:4] == [name, '3', '-', '1']
    assert page.evaluate('[...document.images].every(i => i.naturalWidth > 0)')
    page.close()
