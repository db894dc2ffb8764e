"""Processes of ``tools/infer.py --stream`` that differ in what they do, or cannot read an image."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from helpers.processes import forked, in_processes, run_in_fork, torchruns
from helpers.random_weights import DETECTOR
from helpers.small_xcit import small_xcit

from xcit_mm import stream, stream_backward
from xcit_mm.base.errors import ArgumentError, ProcessesError
from xcit_mm.large.shared_images import shared_images

GOOD, OTHER = 'good.npy', 'other.npy'
UNREADABLE, DAMAGED = 'unreadable.npy', 'damaged.tif'  # the second only in its last rows
# What the second process does differently: its images (each is good.npy for the first), its
# checkpoint or an option; and what all processes say.
CASES = {
    'another image': (
        dict(images=[OTHER]),
        ['the size of the image is (130, 160, 3) in process 1 on', 'the content of the image is'],
    ),
    'another checkpoint': (
        dict(checkpoint='other.pth'),
        ['the model (config and checkpoint) is'],
    ),
    'other options': (
        dict(options=['--score-thr=0.6', '--statistics-window=64', '--dtype=bfloat16']),
        ['dtype is torch.float32 in', 'score_thr is 0.3 in', 'statistics_window is None in'],
    ),
    'more images': (dict(images=[GOOD, OTHER]), ['input 2 is missing in process 1 on']),
    'unreadable for one': (dict(images=[UNREADABLE]), ['image_0.npy cannot be opened']),
}
BOTH = 'images that nobody can predict'
NO_FOLDER = 'a folder that the first process cannot write to'


@pytest.fixture(scope='module')
def outcomes(weights, image, tmp_path_factory) -> dict[str, list[tuple[int, str]]]:
    """The exit code and the output of each of two processes, for every case."""
    folder = tmp_path_factory.mktemp('different')
    np.save(folder / GOOD, image)
    np.save(folder / OTHER, np.pad(image, [(0, 9), (0, 0), (0, 0)]))
    (folder / UNREADABLE).write_bytes(b'\x93NUMPY\x01\x00')
    damage(folder / DAMAGED, image)
    state = torch.load(weights[DETECTOR], weights_only=False)
    next(iter(state['state_dict'].values())).add_(1e-3)
    torch.save(state, folder / 'other.pth')

    def run(rank: int, number: int, images=(GOOD,), checkpoint=None, options=()) -> None:
        os.environ.update(envs[number], RANK=str(rank))
        inputs = []
        for i, image in enumerate(images):  # links, because the names are compared as well
            inputs.append(folder / f'{number}_{rank}' / f'image_{i}{Path(image).suffix}')
            inputs[i].parent.mkdir(exist_ok=True)
            inputs[i].symlink_to(folder / image)
        checkpoint = folder / checkpoint if checkpoint else weights[DETECTOR]
        arguments = DETECTOR, checkpoint, *inputs, '--stream', '--out', folder / f'out_{number}'
        outcome = run_in_fork('infer.py', *arguments, '--device', 'cpu', *options)
        (folder / f'{number}_{rank}.json').write_text(json.dumps(outcome))

    def run_all(rank: int) -> None:
        for number, (second, _) in enumerate(CASES.values()):
            run(rank, number, **(second if rank else {}))
        run(rank, len(CASES), [UNREADABLE, DAMAGED, GOOD])
        run(rank, len(CASES) + 1, options=['--out', folder / UNREADABLE / 'out'])

    with torchruns(len(CASES) + 2, 2) as envs:
        forked(2, run_all)
    outcomes = {}
    for number, name in enumerate([*CASES, BOTH, NO_FOLDER]):
        files = [folder / f'{number}_{rank}.json' for rank in (0, 1)]
        outcomes[name] = [json.loads(f.read_text()) if f.exists() else (None, '') for f in files]
    return outcomes | {'folder': folder / f'out_{len(CASES)}'}


def damage(path: Path, image: np.ndarray) -> None:
    """Write a TIFF whose last rows cannot be read."""
    height, width, _ = image.shape
    shape = dict(height=height, width=width, count=3, dtype='uint8')
    with rasterio.open(path, 'w', 'GTiff', compress='deflate', blockysize=16, **shape) as file:
        file.write(np.moveaxis(image, -1, 0))
    with rasterio.open(path) as file:
        offset = int(file.get_tag_item('BLOCK_OFFSET_0_7', 'TIFF', bidx=1))
    content = bytearray(path.read_bytes())
    content[offset : offset + 40] = bytes(40)
    path.write_bytes(content)


@pytest.mark.parametrize('case', CASES)
def test_all_processes_say_what_differs(case, outcomes):
    _, sentences = CASES[case]
    for code, printed in outcomes[case]:
        assert code == 2, printed
        assert all(sentence in printed for sentence in sentences), printed
        assert 'Traceback' not in printed


def test_no_process_waits_for_one_that_cannot_write(outcomes):
    (code, printed), (other_code, other_printed) = outcomes[NO_FOLDER]
    assert (code, other_code) == (2, 2), printed + other_printed
    assert 'cannot be written to' in printed
    assert 'another process has ended: see its message' in other_printed


def test_other_images_are_predicted(outcomes, weights, image, detector):
    (code, printed), (other_code, other_printed) = outcomes[BOTH]
    assert (code, other_code) == (1, 0), printed + other_printed
    for name in ('image_0.npy', 'image_1.tif'):
        assert name in printed
        assert name in other_printed
    assert '2 of the inputs could not be predicted' in printed
    predictions = json.loads((outcomes['folder'] / 'predictions.json').read_text())
    expected = detector.predict_large(image, score_thr=0.3)
    assert len(predictions['annotations']) == len(expected)


def test_a_library_refuses_different_images(tmp_path):
    backbone = small_xcit(16).eval()

    def compare(rank: int) -> None:
        with pytest.raises(ProcessesError, match=r'image is \(3, 64, 64\) in process 1 on'):
            stream(backbone, torch.zeros(3, 64, 64 + 32 * rank))
        with pytest.raises(ProcessesError, match=r'image is \(3, 64, 64\) in process 1 on'):
            stream_backward(backbone, torch.zeros(3, 64, 64 + 32 * rank), [])
        with (
            shared_images(backbone),
            pytest.raises(ProcessesError, match='width of the image is 64 in process 1 on'),
        ):
            backbone(torch.zeros(1, 3, 64, 64 + 32 * rank))
        with (
            pytest.raises(ProcessesError, match='the backbone is XCiT'),
            shared_images(backbone.train(rank == 0)),
        ):
            pass
        backbone.blocks[0].attn.qkv.register_forward_hook(lambda *call: None)
        with (
            pytest.raises(ArgumentError, match=r'blocks\.0\.attn of the backbone has hooks'),
            shared_images(backbone),
        ):
            pass

    in_processes(2, compare, tmp_path)
