"""Datasets in the layouts of VOC and YOLO, converted to COCO's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.other_layouts import (
    SCRATCH,
    make_voc,
    make_yolo,
    read_coco,
    voc_object,
    write_xml,
    write_yaml,
)
from helpers.planted import rotated
from PIL import Image

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.audit import check_dataset
from xcit_mm.data.importers.contents import image_size
from xcit_mm.data.importers.voc import VocDataset
from xcit_mm.data.importers.write_coco import convert
from xcit_mm.data.importers.yolo import YoloDataset
from xcit_mm.data.transforms.decode import EXIF_ORIENTATION, decode

MAKERS = {
    'voc': lambda shapes, root: VocDataset(make_voc(shapes, root)),
    'yolo': lambda shapes, root: YoloDataset(make_yolo(shapes, root)),
    'polygons': lambda shapes, root: YoloDataset(make_yolo(shapes, root, with_polygons=True)),
}


def read(root: Path, split: str) -> dict:
    return json.loads((root / f'{split}.json').read_text())


def file_names(root: Path, split: str) -> list[str]:
    return [image['file_name'] for image in read(root, split)['images']]


@pytest.mark.parametrize('name', MAKERS)
def test_a_run_accepts_the_config_and_objects_equal_the_original(shapes_root, tmp_path, name):
    root = tmp_path / name
    convert(MAKERS[name](shapes_root, tmp_path / 'source'), root, SCRATCH)
    for split in ('train', 'val'):
        content, original = read(root, split), read_coco(shapes_root, split)
        assert content['categories'] == original['categories']
        sizes = [(Path(i['file_name']).name, i['width'], i['height']) for i in content['images']]
        assert sizes == [(i['file_name'], i['width'], i['height']) for i in original['images']]
        first_id = original['images'][0]['id']
        for new, old in zip(content['annotations'], original['annotations'], strict=True):
            assert new['image_id'] - 1 == old['image_id'] - first_id
            assert (new['category_id'], new['iscrowd']) == (old['category_id'], 0)
            assert new['bbox'] == pytest.approx(old['bbox'], abs=0.011)
            if name == 'polygons':
                assert new['segmentation'][0] == pytest.approx(old['segmentation'][0], abs=1e-3)
                assert new['area'] == pytest.approx(old['area'], rel=1e-3)
            else:
                assert new['area'] == pytest.approx(old['bbox'][2] * old['bbox'][3], rel=1e-2)

    cfg = load_config(root / f'{name}.py')
    assert cfg.work_dir == f'work_dirs/{name}'
    assert cfg.model.roi_head.bbox_head.num_classes == 3
    assert (cfg.scale, cfg.max_iters, cfg.train_cfg.max_iters) == ((160, 160), 600, 600)
    report = check_dataset(cfg, workers=1)
    assert report.images == dict(train=24, val=4) and not report.findings + report.failures


def test_the_tool_reports_what_it_cut_dropped_and_wrote(prepare, yolo, tmp_path):
    (yolo / 'labels/train/b.txt').write_text('1 0.9 0.5 0.5 0.5\n\n1 0.9 0.5 0.5 0.5\n0 0 0 1 1\n')
    (yolo / 'labels/val/b.txt').unlink()
    code, _, error = prepare(yolo)
    assert code == 2 and '3 of 4 objects extend beyond their image' in error
    code, output, _ = prepare(yolo, '--skip-bad')
    assert code == 0
    assert output.splitlines() == [
        'train.json: 2 images, 3 objects: red apple 1, pear 2',
        'val.json: 2 images, 1 object: red apple 0, pear 1',
        'val: no objects of red apple, which are not measured, although train has some',
        'Objects that extend beyond the image, and are cut at its border: 3',
        'Duplicate objects dropped: 1',
        f'Images without a label file, such as {yolo}/images/val/b.png, used as background: 1',
        f'Everything was written to {tmp_path}/out',
        'Faster R-CNN with XCiT-N12/16, from random weights: 600 updates with 8 images each, '
        'resized to 64 pixels (--cfg-options max_iters=N scale=PIXELS changes this)',
        'Read every image, then train:',
        f'    tools/check_dataset.py {tmp_path}/out/out.py',
        f'    tools/train.py {tmp_path}/out/out.py',
    ]
    boxes = [annotation['bbox'] for annotation in read(tmp_path / 'out', 'train')['annotations']]
    assert boxes == [[10, 7.5, 20, 15], [26, 7.5, 14, 15], [0, 0, 20, 15]]


def test_a_second_call_writes_only_what_changed_and_keeps_earlier_files(prepare, yolo, tmp_path):
    prepare(yolo)
    config = tmp_path / 'out/out.py'
    inode = config.stat().st_ino
    code, output, _ = prepare(yolo)
    assert code == 0 and 'Everything was already there' in output
    assert config.stat().st_ino == inode

    config.write_text('# mine\n')
    write_yaml(yolo, '[apple, pear]', val='')
    code, output, _ = prepare(yolo)
    (aside,) = (tmp_path / 'out').glob('earlier_*')
    assert code == 0 and f'Earlier files are now in {aside}' in output
    assert (aside / 'out.py').read_text() == '# mine\n'
    assert len(list(aside.iterdir())) == 3
    assert 'Images for validation, which the dataset has no split for: 1' in output
    assert load_config(config).classes == ('apple', 'pear')


def test_the_folders_of_the_config_and_of_the_images_can_be_moved(yolo, tmp_path):
    convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)
    config = shutil.move(tmp_path / 'out', tmp_path / 'moved') / 'out.py'
    moved = yolo.rename(tmp_path / 'elsewhere')
    with pytest.raises(UserError, match=r'the images have moved: --cfg-options data_root=DIR'):
        check_dataset(load_config(config), workers=1)
    assert check_dataset(load_config(config, {'data_root': str(moved)}), workers=1).failures == []


def test_difficult_objects_are_ignored_in_training_and_evaluation(voc, tmp_path):
    difficult = voc_object('pear', [1, 1, 9, 9], more='<difficult>1</difficult>')
    part = '<part><name>leaf</name><bndbox><xmin>1</xmin></bndbox></part>'
    write_xml(voc, 'a', 40, 30, difficult + voc_object('nut', [0, 0, 9, 9], more=part))
    convert(VocDataset(voc), tmp_path / 'out', SCRATCH)
    (pear, nut) = read(tmp_path / 'out', 'train')['annotations']
    assert (pear['iscrowd'], nut['iscrowd'], nut['bbox']) == (1, 0, [0, 0, 9, 9])
    cfg = load_config(tmp_path / 'out/out.py')
    assert cfg.classes == ('nut', 'pear')
    assert {cfg.model.train_cfg[part].assigner.ignore_iof_thr for part in ('rpn', 'rcnn')} == {0.5}


def test_splits_of_several_years_are_joined(voc, tmp_path):
    for year in ('VOC2007', 'VOC2012'):
        lists = shutil.copytree(voc, tmp_path / 'devkit' / year) / 'ImageSets/Main'
        lists.mkdir(parents=True)
        for split, names in dict(train='a', val='b', trainval='a\nb', test='b').items():
            (lists / f'{split}.txt').write_text(names)
    convert(VocDataset(tmp_path / 'devkit'), tmp_path / 'out', SCRATCH)
    validated = ['VOC2007/JPEGImages/b.png', 'VOC2012/JPEGImages/b.png']
    assert file_names(tmp_path / 'out', 'val') == validated
    assert len(file_names(tmp_path / 'out', 'trainval')) == 4


# They cannot change the config.
NAMES = ['yes', '2', "{{ fileDirname }}'+quit()+'", '{{_base_.model}}"""\\', 'Äpfel, 2']


def test_splits_of_yolo_are_folders_lists_and_text_files(yolo, tmp_path):
    (yolo / 'lists').mkdir()
    lines = ['./../images/val/a.png', str(yolo / 'images/val/b.png'), 'images/train/a.png']
    (yolo / 'lists/val.txt').write_text('\n'.join(lines))
    (yolo / 'data.yaml').write_text(
        'path: /of/another/machine\ntrain: [../images/train, images/val]\nval: lists/val.txt\n'
        f'test: images\nnames: [yes, 2, {json.dumps(NAMES[2:])[1:]}\n'
    )
    convert(YoloDataset(yolo / 'data.yaml'), tmp_path / 'out', SCRATCH)
    everything = [f'images/{split}/{name}.png' for split in ('train', 'val') for name in 'ab']
    assert file_names(tmp_path / 'out', 'train') == everything
    assert file_names(tmp_path / 'out', 'val') == [*everything[2:], everything[0]]
    assert file_names(tmp_path / 'out', 'test') == everything
    cfg = load_config(tmp_path / 'out/out.py')
    assert list(cfg.classes) == NAMES
    assert check_dataset(cfg, workers=1).failures == []


def test_a_yaml_of_ultralytics_names_a_folder_below_the_current_one(yolo, tmp_path, monkeypatch):
    file = tmp_path / 'configs/fruit.yaml'
    file.parent.mkdir()
    lines = f'path: {yolo.name}\ntrain: images/train\nval: images/val\nnames: [red apple, pear]\n'
    file.write_text(f'{lines}test: ../test/images  # by Roboflow, if there is none\n')
    monkeypatch.chdir(yolo.parent)
    dataset = YoloDataset(file)
    assert dataset.splits['val'] == sorted(yolo.glob('images/val/*'))
    assert [what for what in dataset.remarks if 'key test' in what]
    file.write_text(lines.replace(yolo.name, 'other'))
    with pytest.raises(UserError, match=r'does not exist in .*other or .*: correct it, or path,'):
        YoloDataset(file)


def test_yolo_without_a_yaml_has_a_list_of_classes_and_folders(yolo, tmp_path):
    (yolo / 'data.yaml').unlink()
    (yolo / 'classes.txt').write_text('\ufeffred apple\r\npear\r\n')
    for expected in ([2, 2], [3, 1]):
        convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)
        counts = [len(read(tmp_path / 'out', split)['annotations']) for split in ('train', 'val')]
        assert counts == expected
        for file in [*yolo.glob('images/*/*'), *yolo.glob('labels/*/*')]:  # beside each other
            file.rename(yolo / f'{file.parent.name}_{file.name}')
        for folder in ('images', 'labels'):
            shutil.rmtree(yolo / folder, ignore_errors=True)


def test_yolo_whose_yaml_names_only_classes_has_the_folders_of_images(yolo, tmp_path):
    (yolo / 'data.yaml').write_text('names: [red apple, pear]\n')
    convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)
    counts = [len(read(tmp_path / 'out', split)['images']) for split in ('train', 'val')]
    assert counts == [len([*yolo.glob(f'images/{split}/*')]) for split in ('train', 'val')]


def test_a_folder_without_images_shows_no_empty_bar(yolo, tmp_path, capfd):
    for file in yolo.glob('images/*/*'):
        file.unlink()
    with pytest.raises(UserError, match='too few images'):
        convert(YoloDataset(yolo / 'data.yaml'), tmp_path / 'out', SCRATCH)
    assert 'Reading' not in ''.join(capfd.readouterr())


LABELS = [
    '1 0.5 0.5 0.5 0.5\n0 0.2 0.2 0.1 0.1\n',
    '\ufeff1 0.5 0.5 0.5 0.5\r\n0 0.2 0.2 0.1 0.1\r\n',
    ' 1.0\t5e-1\t0.5\t0.5\t0.5 \n\n \t\n0\t0.2 0.2 0.1 0.1',
]


@pytest.mark.parametrize('text', LABELS)
def test_labels_of_yolo_are_read_in_any_form_of_text(yolo, tmp_path, text):
    (yolo / 'labels/train/a.txt').write_bytes(text.encode())
    (yolo / 'labels/train/b.txt').write_text('')  # no objects
    convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)
    pear, apple = read(tmp_path / 'out', 'train')['annotations']
    assert (pear['category_id'], pear['bbox']) == (2, [10, 7.5, 20, 15])
    assert (apple['category_id'], apple['bbox']) == (1, [6, 4.5, 4, 3])


def test_oriented_boxes_of_yolo_are_outlines_and_are_counted(prepare, yolo, tmp_path):
    for name in 'ab':
        (yolo / f'labels/train/{name}.txt').write_text('1 0.5 0.2 0.8 0.5 0.5 0.8 0.2 0.5')
    code, output, _ = prepare(yolo)
    assert code == 0
    (line,) = (line for line in output.splitlines() if 'oriented boxes' in line)
    assert line.startswith('Outlines of four corners, as YOLO writes oriented boxes (OBB); detect')
    assert line.endswith(': 2')
    box, _ = read(tmp_path / 'out', 'train')['annotations']
    assert box['bbox'] == [8, 6, 24, 18] and box['area'] == 24 * 18 / 2
    assert box['segmentation'] == [[20, 6, 32, 15, 20, 24, 8, 15]]


@pytest.mark.parametrize(
    ('box', 'expected'),
    [
        ([-1, -1, 40, 30], [0, 0, 39, 29]),  # counted from 0
        (['9.5', ' 4.25\n', '21.25', '15.75'], None),
        ([9, 9, 1, 1], [9, 9, 1, 1]),  # one pixel
    ],
)
def test_boxes_of_voc_are_read(voc, tmp_path, box, expected):
    xml = voc_object('pear', [float(n) for n in box], more='<difficult>True</difficult>')
    xml += voc_object('pear', [2, 2, 8, 8])  # which can be learned
    path = write_xml(voc, 'a', '40.0', '30.0', xml)
    path.rename(path.with_suffix('.XML'))
    convert(VocDataset(voc), tmp_path / 'out', SCRATCH)
    annotation, _ = read(tmp_path / 'out', 'train')['annotations']
    assert annotation['bbox'] == (expected or [9.5, 4.25, 21.25, 15.75])
    assert annotation['iscrowd'] == 1


@pytest.mark.parametrize('suffix', ['png', 'bmp', 'pgm'])
def test_images_are_as_large_as_the_decoder_allows(suffix, tmp_path, monkeypatch):
    image, exif = tmp_path / f'a.{suffix}', Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    Image.new('L', (90, 70)).save(image, exif=exif)
    size = (70, 90) if suffix == 'png' else (90, 70)  # the others have no EXIF
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    assert image_size(image) == size == decode(image.read_bytes()).shape[1::-1]


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_image_sizes_follow_exif_as_in_training(tmp_path, kind):
    for orientation in (1, 3, 6):
        data = rotated(np.zeros((30, 40, 3), np.uint8), orientation, kind)
        (tmp_path / 'image').write_bytes(data)
        for annotated in (None, (40, 30), (30, 40)):
            expected = decode(data, annotated).shape[1::-1]
            assert image_size(tmp_path / 'image', annotated) == expected


def test_an_outline_that_crosses_itself_has_an_area(yolo, tmp_path):
    (yolo / 'labels/train/a.txt').write_text('1 0.1 0.1 0.9 0.9 0.9 0.1 0.1 0.9')
    convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)
    assert read(tmp_path / 'out', 'train')['annotations'][0]['area'] == 32 * 24 / 2
