"""Processes of a training or a test that differ in what they do."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.processes import forked, torchruns
from helpers.runs import DETECTOR

from xcit_mm.base.errors import ProcessesError
from xcit_mm.config.load import load_config
from xcit_mm.train import test as run_test
from xcit_mm.train import train
from xcit_mm.train.checkpoints.recipe import fingerprint

# What the second process does differently, and what all processes say.
CASES = {
    'an option': (
        {'options': {'optim_wrapper.optimizer.lr': 0.5}},
        'optim_wrapper.optimizer.lr is 0.25 in process 1 on',
    ),
    'annotations': ({'options': {'data_root': 'other'}}, 'part 1 of the train data is'),
    'the checkpoint of a test': ({'checkpoint': 'other.pth'}, 'the checkpoint is'),
}


@pytest.fixture(scope='module')
def roots(shapes_root, tmp_path_factory) -> tuple[Path, Path, Path]:
    """The data, a copy of it, and a copy with other annotations."""
    folder = tmp_path_factory.mktemp('roots')
    for name in ('copy', 'other'):
        shutil.copytree(shapes_root, folder / name)
    path = folder / 'other/coco/annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    content['annotations'][0]['area'] += 1
    path.write_text(json.dumps(content))
    return shapes_root, folder / 'copy', folder / 'other'


@pytest.fixture(scope='module')
def outcomes(weights, roots, tmp_path_factory) -> dict[str, list[str]]:
    """The errors of each of two processes, for every case."""
    folder = tmp_path_factory.mktemp('same_run')
    state = torch.load(weights[DETECTOR], weights_only=False)
    state['more'] = 1
    torch.save(state, folder / 'other.pth')
    own, *_, other = roots
    files = {'other': other, 'other.pth': folder / 'other.pth'}

    def run(rank: int, number: int, name: str) -> None:
        different = CASES[name][0] if rank else {}
        os.environ.update(envs[number], RANK=str(rank))
        options = {'data_root': own, 'optim_wrapper.optimizer.lr': 0.25}
        options |= different.get('options', {})
        options['data_root'] = str(files.get(options['data_root'], options['data_root']))
        arguments = dict(launcher='pytorch', work_dir=str(folder / f'{number}_{rank}'))
        with pytest.raises(ProcessesError) as raised:
            if name.endswith('a test'):
                checkpoint = files.get(different.get('checkpoint'), weights[DETECTOR])
                options = {'data_root': str(own)}
                run_test(DETECTOR, str(checkpoint), options=options, **arguments)
            else:
                train(DETECTOR, options=options, **arguments)
        torch.distributed.destroy_process_group()
        (folder / f'{number}_{rank}.txt').write_text(str(raised.value))

    def run_all(rank: int) -> None:
        for number, name in enumerate(CASES):
            run(rank, number, name)

    with torchruns(len(CASES), 2) as envs:
        forked(2, run_all)
    return {
        name: [(folder / f'{number}_{rank}.txt').read_text() for rank in (0, 1)]
        for number, name in enumerate(CASES)
    }


@pytest.mark.parametrize('case', CASES)
def test_all_processes_say_what_differs(case, outcomes):
    first, second = outcomes[case]
    assert first == second
    assert CASES[case][1] in first


def test_other_paths_and_workers_are_the_same_run(roots):
    descriptions = []
    for root, workers in zip(roots, (0, 2, 0), strict=True):
        options = {'data_root': str(root), 'train_dataloader.num_workers': workers}
        cfg = load_config(DETECTOR, options, f'work_{workers}', 'pytorch')
        descriptions.append(fingerprint(cfg, ('train', 'val')))
    assert descriptions[0] == descriptions[1]
    assert descriptions[0] != descriptions[2]
