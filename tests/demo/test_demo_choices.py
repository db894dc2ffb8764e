"""The configs and checkpoints that the page offers, and those that can be asked for."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from xcit_mm.demo import choices, find_models
from xcit_mm.errors import UserError


def test_runs_are_offered_newest_first_and_released_weights_with_their_config(tmp_path):
    configs, work_dirs = tmp_path / 'configs', tmp_path / 'work_dirs'
    for age, name in enumerate(('old/a.py', 'old/iter_1.pth', 'old/iter_2.pth', 'new/b.py')):
        write(work_dirs / name, age)
    write(work_dirs / 'new/iter_9.pth', 9)
    write(work_dirs / 'new/not_finite_iter_10_rank_0.pth', 10)
    write(work_dirs / 'unfinished/c.py', 10)
    write(work_dirs / 'broken/d.py', 10)
    write(work_dirs / 'broken/not_finite_iter_1_rank_0.pth', 10)
    write(configs / 'released.py', 0, '"""A model.\n\nWeights: https://host/w.pth\n"""\n')
    write(configs / 'broken.py', 0, 'def\n')
    found = find_models(configs, work_dirs)
    assert list(found.items()) == [
        (f'{work_dirs}/new/b.py', [f'{work_dirs}/new/iter_9.pth']),
        (f'{work_dirs}/old/a.py', [f'{work_dirs}/old/iter_2.pth', f'{work_dirs}/old/iter_1.pth']),
        (f'{configs}/broken.py', []),
        (f'{configs}/released.py', ['https://host/w.pth']),
    ]
    assert list(find_models(tmp_path / 'none', work_dirs / 'new')) == [f'{work_dirs}/new/b.py']


def write(path: Path, time: float, text: str = '') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


@pytest.mark.parametrize(
    ('config', 'checkpoint', 'any_checkpoint', 'sentence'),
    [
        ('b.py', '1.pth', True, 'the config b.py is not, or no longer, among those'),
        (None, '1.pth', True, 'no config is chosen'),
        ('a.py', None, True, 'no checkpoint is chosen for a.py: take one of the list, or type'),
        ('a.py', '', False, 'no checkpoint is chosen for a.py'),
        ('a.py', '2.pth', False, 'the checkpoint 2.pth is not, or no longer, among those'),
        ('a.py', 'https://host/2.pth', False, 'the checkpoint https://host/2.pth is not'),
    ],
)
def test_only_what_is_offered_can_be_asked_for(config, checkpoint, any_checkpoint, sentence):
    offered = {'a.py': ['1.pth']}
    with pytest.raises(UserError, match=f'^{re.escape(sentence)}'):
        choices.require_offered(config, checkpoint, offered, any_checkpoint)
    choices.require_offered('a.py', '1.pth', offered, any_checkpoint)
    choices.require_offered('a.py', '2.pth', offered, any_checkpoint=True)


def test_a_checkpoint_can_be_typed_only_where_the_page_is_started_for_it(monkeypatch, tmp_path):
    tool = runpy.run_path(str(ROOT / 'tools/demo.py'))
    write(tmp_path / 'a.py', 0)
    pages = []
    monkeypatch.setitem(tool['main'].__globals__, 'serve', lambda page, *_: pages.append(page))
    for options in ([], ['--any-checkpoint']):
        monkeypatch.setattr(sys, 'argv', ['demo.py', '--configs', str(tmp_path), *options])
        tool['main']()
    typed = [
        [block.allow_custom_value for block in page.build().blocks.values() if is_dropdown(block)]
        for page in pages
    ]
    assert typed == [[False, False], [False, True]]


def is_dropdown(block) -> bool:
    return block.get_block_name() == 'dropdown'
