"""What is read of a run, however it was interrupted, and what plots and the page show of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.evaluated_runs import evaluated_run, resumed_run
from helpers.in_process import call_tool
from helpers.resumed_runs import StopHook
from PIL import Image

import xcit_mm
from xcit_mm import UserError
from xcit_mm.train.hooks.loss_log import remove_lines_after
from xcit_mm.train.report import draw_png, read_run, read_runs, write_page

AP = {'coco/bbox_mAP': 0.4, 'coco/bbox_mAP_50': 0.6, 'coco/bbox_mAP_s': -1}


def assert_tensorboard_shows_the_logs_of(work_dir: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(work_dir / 'tensorboard'))
    events.Reload()
    for file, prefix in (('losses.jsonl', 'train'), ('metrics.jsonl', 'val')):
        logged = [json.loads(line) for line in (work_dir / file).open()]
        for name in logged[0].keys() - {'iter', 'epoch'}:
            seen = [(event.step, event.value) for event in events.Scalars(f'{prefix}/{name}')]
            assert seen == [(line['iter'], pytest.approx(line[name])) for line in logged]


def iters(path: Path) -> list[int]:
    return [json.loads(line)['iter'] for line in path.open()]


def write_lines(path: Path, *lines: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{json.dumps(line)}\n' for line in lines))


def page_of(folders: list[Path], path: Path) -> tuple[str, list[list[str]]]:
    """The text of a page, and the rows of its tables."""
    write_page(read_runs(folders)[0], path)
    rows = re.findall('<tr>(.*?)</tr>', path.read_text(), re.DOTALL)
    cells = [re.findall('<t[hd]>(?:<code>)?(.*?)(?:</code>)?</t[hd]>', row) for row in rows]
    return path.read_text(), cells


@pytest.fixture(scope='module')
def toy_run(tmp_path_factory) -> Path:
    """The folder of a whole run of the toy."""
    work_dir = tmp_path_factory.mktemp('runs') / 'a <b>bold</b> run'
    log = dict(log_level='INFO', log_processor=dict(window_size=1))
    evaluated_run(work_dir, 'ReportHook', **log).train()
    return work_dir


@pytest.mark.parametrize(
    ('kwargs', 'validations'), [({}, [2, 4, 6, 8]), (dict(by_epoch=True), [5, 10])]
)
def test_a_resume_leaves_no_gap_and_nothing_twice(tmp_path, kwargs, validations):
    """In the logs and for TensorBoard; the sixth iteration is followed by a validation."""
    whole, cut = tmp_path / 'whole', tmp_path / 'cut'
    evaluated_run(whole, **kwargs).train()
    kwargs = kwargs | {'default_hooks.checkpoint.interval': 4}
    runner = evaluated_run(cut, 'TensorBoardHook', **kwargs)
    runner.register_hook(StopHook(6))
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()
    resumed_run(cut, 'TensorBoardHook', **kwargs).train()
    for name in ('losses.jsonl', 'metrics.jsonl'):
        assert (whole / name).read_text() == (cut / name).read_text()
    assert iters(cut / 'metrics.jsonl') == validations
    assert_tensorboard_shows_the_logs_of(cut)


def test_the_last_validation_stays_if_a_resume_does_not_repeat_it(tmp_path):
    evaluated_run(tmp_path, 'TensorBoardHook', steps=4).train()
    resumed_run(tmp_path, 'TensorBoardHook', **{'train_cfg.val_interval': 5, 'steps': 8}).train()
    assert iters(tmp_path / 'metrics.jsonl') == [2, 4, 5, 8]
    assert_tensorboard_shows_the_logs_of(tmp_path)
    evaluated_run(tmp_path, 'TensorBoardHook', steps=2).train()  # a new run in the same folder
    assert iters(tmp_path / 'losses.jsonl') == [1, 2]
    assert_tensorboard_shows_the_logs_of(tmp_path)


@pytest.mark.filterwarnings('error')
def test_hostile_names_are_only_text(tmp_path):
    names = ('a\x1b[2J\x1b]0;title\x07', '<script>alert(1)</script>', 'x' * 10**6)
    folders = [tmp_path / r'$\wrong$', tmp_path / '_b']
    for folder in folders:
        write_lines(folder / 'metrics.jsonl', dict.fromkeys(names, 0.5) | dict(iter=1))
        info = dict(zip(('config', 'hardware', 'config_text'), names, strict=True))
        (folder / 'run.json').write_text(json.dumps(info | {names[1]: names[0]}))
    page, rows = page_of(folders, tmp_path / 'out.html')
    assert '\x1b' not in page and '<script>' not in page
    assert '&lt;script&gt;' in page and 'xxx ... xxx' in page
    assert [row[0] for row in rows[1:3]] == [r'$\wrong$', '_b']


def test_losses_that_are_not_finite_are_marked_and_long_curves_are_drawn_as_means(tmp_path):
    sizes = []
    for length in (1000, 20_000):
        write_lines(tmp_path / 'losses.jsonl', *(dict(iter=i, loss=i % 7) for i in range(length)))
        sizes.append(len(page_of([tmp_path], tmp_path / 'out.html')[0]))
    assert sizes[1] < 1.5 * sizes[0]
    lines = [dict(iter=i, loss=None if i in (30, 31, 70) else i) for i in range(1, 101)]
    write_lines(tmp_path / 'losses.jsonl', *lines)
    draw_png([read_run(tmp_path)], tmp_path / 'out.png')
    pixels = np.asarray(Image.open(tmp_path / 'out.png').convert('RGB')).astype(int)
    red = (pixels[..., 0] > 200) & (pixels[..., 1:].max(-1) < 60)
    blue = abs(pixels - (31, 119, 180)).max(-1) < 10
    assert red.sum() > 20 and blue.sum() > 300


def test_the_report_shows_curves_pictures_and_metrics_without_a_network(toy_run, browser, tmp_path):
    (toy_run / 'pictures').mkdir()
    for number in range(16):
        Image.new('RGB', (1000, 250)).save(toy_run / f'pictures/{number:02}.png')
    write_page([read_run(toy_run)], tmp_path / 'report.html')
    page = browser.new_page(viewport=dict(width=360, height=900), offline=True)  # a phone
    messages, requests = [], []
    page.on('console', lambda message: messages.append(message.text))
    page.on('request', lambda request: requests.append(request.url))
    page.goto((tmp_path / 'report.html').as_uri())
    assert not messages and all(url.startswith(('data:', 'file:')) for url in requests)
    assert page.evaluate('document.documentElement.scrollWidth') == 360
    assert page.title() == toy_run.name and page.locator('b').count() == 0  # and no bold run
    shown = page.evaluate('[...document.images].map(i => [i.naturalWidth, i.alt])')
    titles = [alt.removesuffix(' over the iterations') for _, alt in shown[:3]]
    assert titles == ['Loss', 'Mean IoU, percent', 'Learning rate']
    assert [width for width, _ in shown[3:]] == [960] * 16
    table = page.locator('.card', has_text='Validations').locator('tr').all_inner_texts()
    assert table[1:] == ['iter\t8', 'mIoU\t0.25', 'mAcc\t0.5']
    text = page.locator('main').text_content()
    assert 'ToyDataset' in text and xcit_mm.__version__ in text
    page.close()


def test_the_page_of_several_runs_compares_validations_and_configs(tmp_path):
    write_lines(tmp_path / 'a/losses.jsonl', dict(iter=1, loss=1), dict(iter=3, loss=None))
    write_lines(tmp_path / 'a/metrics.jsonl', dict(AP, iter=2), {'coco/bbox_mAP': 0.3, 'iter': 3})
    write_lines(tmp_path / 'b/losses.jsonl', dict(iter=1, loss=1))
    for name, rate in (('a', '0.1'), ('b', '0.2')):
        info = dict(config_text=f'epochs = 3\nlr = {rate}', parameters=dict(all=1234))
        info |= dict(duration='0:07:12') if name == 'a' else {}
        (tmp_path / name / 'run.json').write_text(json.dumps(info))
    _, rows = page_of([tmp_path / 'a', tmp_path / 'b'], tmp_path / 'out.html')
    assert rows[:10] == [
        ['run', 'iterations', 'planned', 'duration', 'parameters', 'losses not finite'],
        ['a', '3', '-', '0:07:12', '1,234', '1'],
        ['b', '1', '-', '-', '1,234', '0'],
        ['', 'a, last', 'a, best'],
        ['Box AP', '0.3', '0.4'],
        ['iter', '3', '2'],
        ['Box AP50', '-', '0.6'],
        ['', 'a', 'b'],
        ['lr = 0.1', 'x', ''],
        ['lr = 0.2', '', 'x'],
    ]


def test_the_page_has_a_table_of_the_classes(tmp_path):
    objects = {'coco/bbox_mAP': 0.3, 'coco/bbox_AP_cat': 0.25, 'coco/bbox_AP_dog': -1}
    pixels = {'IoU_cat': 50.5, 'Acc_cat': 75, 'IoU_dog': None, 'Acc_dog': 0}
    write_lines(tmp_path / 'metrics.jsonl', dict(iter=2, **objects, **pixels))
    _, rows = page_of([tmp_path], tmp_path / 'out.html')
    assert rows[2:10] == [
        ['', f'{tmp_path.name}, last'],
        ['iter', '2'],
        ['Box AP', '0.3'],
        ['class', 'box AP'],
        ['cat', '0.250'],
        ['class', 'IoU', 'Acc'],
        ['cat', '50.50', '75.00'],
        ['dog', '-', '0.00'],
    ]


def test_a_resumed_run_adds_the_duration_until_its_checkpoint(tmp_path):
    evaluated_run(tmp_path, 'ReportHook', steps=4).train()
    path = tmp_path / 'iter_4.pth'
    checkpoint = torch.load(path, weights_only=False)
    assert 0 < checkpoint['meta']['seconds'] < 60
    checkpoint['meta']['seconds'] = 7200.0
    torch.save(checkpoint, path)
    resumed_run(tmp_path, 'ReportHook', steps=6).train()
    assert read_run(tmp_path).info['duration'].startswith('2:00:')


def test_a_training_leaves_its_information_and_says_where_its_report_is(toy_run, tmp_path):
    info = read_run(toy_run).info
    assert (info['iterations'], info['images_per_process']) == (8, 2)
    assert info['images'] == dict(training=10, validation=10)
    assert info['parameters'] == dict(all=7, norm=4, linear=3, trained=7)
    assert torch.__version__.startswith(info['versions']['torch'])
    assert info['versions']['xcit_mm'] == xcit_mm.__version__
    runner = evaluated_run(tmp_path, 'ReportHook', log_level='INFO', steps=2)
    (tmp_path / 'report.html').symlink_to(tmp_path)
    runner.call_hook('after_train')  # which does not fail because of the report
    for work_dir, message in (
        (toy_run, toy_run / 'report.html'),
        (tmp_path, f'not drawn ({tmp_path} holds no run'),
    ):
        (log,) = work_dir.glob('*/*.log')
        assert f'report      {message}' in log.read_text()


def test_a_damaged_line_is_named_unless_a_killed_run_did_not_finish_it(tmp_path):
    """A resume refuses it as well, and keeps the file."""
    log = tmp_path / 'losses.jsonl'
    for line in ('{"iter": "\\u001b[2J"}', '{"iter": 3, "loss": 0.', '[]'):
        log.write_text(f'{{"iter": 1, "loss": 1}}\n{line}\n')
        before = log.read_bytes()
        _, (problem,) = read_runs([tmp_path])
        assert re.fullmatch(rf'line 2 of {log} cannot be read \(.*\): remove .*', str(problem))
        assert len(str(problem)) < 2100 and '\x1b' not in str(problem)
        with pytest.raises(UserError, match='line 2 of '):
            remove_lines_after(log, 5)
        assert log.read_bytes() == before
    log.write_text('{"iter": 1}\n{"iter": 3, "loss": 0.')
    assert [line['iter'] for line in read_run(tmp_path).losses] == [1]


def test_out_names_a_picture_a_page_or_a_folder_for_both(monkeypatch, capfd, tmp_path):
    run = tmp_path / 'run'
    write_lines(run / 'losses.jsonl', *(dict(iter=step, loss=1 / step) for step in (1, 2, 3)))
    for out, files in (
        ('a.png', ['a.png']),
        ('new/a.html', ['new/a.html']),
        ('folder', ['folder/report.png', 'folder/report.html']),
    ):
        arguments = ('plot_run.py', run, '--out', tmp_path / out)
        code, output, _ = call_tool(monkeypatch, capfd, *arguments)
        paths = [tmp_path / name for name in files]
        assert (code, output) == (0, f'Written: {", ".join(map(str, paths))}\n')
    assert Image.open(paths[0]).size > (500, 300)
    assert '<h1>run</h1>' in paths[1].read_text()
    assert [path.name for path in (tmp_path / 'new').iterdir()] == ['a.html']
