"""The folder of the predictions holds whole files, and names those that are there."""

import errno
import json
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from xcit_mm import UserError
from xcit_mm.inference import Detections
from xcit_mm.inference.frames import Frame
from xcit_mm.inference.output import Output
from xcit_mm.inference.sources import Input
from xcit_mm.inference.video import VideoWriter

CLASSES, PALETTE = ('cat',), ((255, 0, 0),)
DETECTOR = SimpleNamespace(task='detection', classes=CLASSES, palette=PALETTE)


def frame_of(name: str, width: int = 400, height: int = 360, index: int | None = None) -> Frame:
    image = np.full((height, width, 3), 100, np.uint8)
    rate = None if index is None else 10.0
    return Frame(Input(name, PurePosixPath(Path(name).stem)), image, index, rate)


def found_in(frame: Frame) -> Detections:
    boxes = np.array([(20.0, 20.0, 60.0, 60.0)])
    labels = np.zeros(1, int)
    return Detections(frame.image, boxes, np.ones(1), labels, None, CLASSES, PALETTE)


def add(output: Output, frame: Frame) -> None:
    output.add(frame, found_in(frame))


def written(folder: Path) -> list[dict]:
    """What the JSON file says of the images; each picture that it names is there."""
    images = json.loads((folder / 'predictions.json').read_text())['images']
    assert all((folder / one['picture']).is_file() for one in images if 'picture' in one)
    return images


def test_a_picture_that_is_too_wide_for_a_jpeg_is_a_png(tmp_path):
    with Output(tmp_path, DETECTOR, {}) as output:
        add(output, frame_of('wide.jpg', 65501, 80))
        add(output, frame_of('fits.jpg', 65500, 80))
    assert [one['picture'] for one in written(tmp_path)] == [
        'pictures/wide.png',
        'pictures/fits.jpg',
    ]
    with Image.open(tmp_path / 'pictures/wide.png') as picture:
        assert picture.size == (65501, 80) and picture.format == 'PNG'


def test_an_interruption_in_a_video_leaves_its_predictions_without_its_name(tmp_path):
    with pytest.raises(KeyboardInterrupt), Output(tmp_path, DETECTOR, {}) as output:
        add(output, frame_of('a.jpg'))
        add(output, frame_of('whole.mp4', index=0))
        for index in range(2):
            add(output, frame_of('clip.mp4', index=index))
        raise KeyboardInterrupt
    assert [one.get('picture') for one in written(tmp_path)] == [
        'pictures/a.jpg', 'pictures/whole.mp4', None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ('code', 'kind', 'says'),
    [
        (errno.EACCES, UserError, r'clip\.mp4 cannot be written \(.*denied'),
        (errno.ENOSPC, OSError, 'No space left'),
    ],
)
def test_a_video_that_cannot_be_finished_costs_no_other_prediction(
    tmp_path, monkeypatch, code, kind, says
):
    def fail(self):
        raise OSError(code, 'No space left' if code == errno.ENOSPC else 'Permission denied')

    monkeypatch.setattr(VideoWriter, 'close', fail)
    with pytest.raises(kind, match=says), Output(tmp_path, DETECTOR, {}) as output:
        add(output, frame_of('a.jpg'))
        add(output, frame_of('clip.mp4', index=0))
    assert [one.get('picture') for one in written(tmp_path)] == ['pictures/a.jpg', None]
    assert [path.name for path in (tmp_path / 'pictures').iterdir()] == ['a.jpg']


def test_earlier_predictions_are_set_aside_once_though_the_first_image_fails(tmp_path):
    (tmp_path / 'pictures').mkdir()
    with Output(tmp_path, DETECTOR, {}) as output:
        with pytest.raises(OSError, match='too long'):
            add(output, frame_of('x' * 300))
        add(output, frame_of('b.jpg'))
    assert len(list(tmp_path.glob('earlier_*'))) == 1
    assert [one['picture'] for one in written(tmp_path)] == ['pictures/b.jpg']
