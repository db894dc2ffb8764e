"""Unused images and labels of VOC and YOLO are counted by reason."""

import shutil
import unicodedata

from PIL import Image

from xcit_mm.data.importers.contents import read_contents
from xcit_mm.data.importers.voc import VocDataset
from xcit_mm.data.importers.yolo import YoloDataset


def remark(contents, text: str) -> int:
    return sum(number for line, number in contents.remarks.items() if text in line)


def test_names_of_splits_in_the_yaml_are_understood_or_named(yolo):
    (yolo / 'more').mkdir()
    (yolo / 'data.yaml').write_text(
        'path: .\nTrain: images/train\nvalid: images/val\nholdout: more\nnames: [apple, pear]\n'
    )
    dataset = YoloDataset(yolo)
    assert {split: len(images) for split, images in dataset.splits.items()} == dict(train=2, val=2)
    assert remark(dataset, 'the key holdout of data.yaml') == 1


def test_what_yolo_leaves_out_is_counted_by_its_reason(yolo):
    train = yolo / 'images/train'
    for folder in ('__MACOSX', '.ipynb_checkpoints'):
        (train / folder).mkdir()
        shutil.copy(train / 'a.png', train / folder)
    (train / 'photo.heic').touch()
    (train / 'up').symlink_to(yolo / 'images')
    Image.new('RGB', (40, 30)).save(train / 'b.jpg')
    (yolo / 'labels/train/gone.txt').write_text('1 0.5 0.5 0.5 0.5\n')
    (yolo / 'labels/train/notes.txt').write_text('by hand\n')
    contents = read_contents(YoloDataset(yolo))
    assert len(contents.images) == 5
    assert remark(contents, 'Label files without an image') == 1
    assert remark(contents, 'Hidden files and folders') == 2
    assert remark(contents, 'Files of other types (.heic)') == 1
    (yolo / 'list.txt').write_text('images/train/a.png')
    (yolo / 'data.yaml').write_text('train: list.txt\nval: images/val\nnames: [apple, pear]\n')
    assert remark(read_contents(YoloDataset(yolo)), 'Images without a label or not listed') == 2


def test_labels_and_images_of_another_spelling_meet(yolo, voc):
    for path in (yolo / 'images/train/a.png', yolo / 'labels/train/a.txt'):
        form = 'NFC' if path.suffix == '.png' else 'NFD'
        path.rename(path.with_stem(unicodedata.normalize(form, 'é')))
    assert len(read_contents(YoloDataset(yolo)).images[yolo / 'images/train/é.png'][1]) == 1
    for path in (voc / 'JPEGImages/a.png', voc / 'Annotations/a.xml'):
        path.rename(path.with_stem('a%20b' if path.suffix == '.png' else 'A b'))
    assert [len(objects) for _, objects in read_contents(VocDataset(voc)).images.values()] == [1, 1]


def test_folders_of_voc_may_have_folders_inside(voc):
    for folder in ('JPEGImages', 'Annotations'):
        (voc / folder / 'cam1').mkdir()
        (file,) = (voc / folder).glob('b.*')
        file.rename(voc / folder / f'cam1/a{file.suffix}')  # another file named a is elsewhere
    contents = read_contents(VocDataset(voc))
    assert [len(objects) for _, objects in contents.images.values()] == [1, 1]
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    (lists / 'Validation.txt').write_text('cam1/a\n')
    (lists / 'pear_train.txt').write_text('a  1\ncam1/a -1\n')
    (lists / 'mine.txt').write_text('a\n')
    dataset = VocDataset(voc)
    assert dataset.splits == {'val': [voc / 'JPEGImages/cam1/a.png']}
    assert remark(dataset, 'Lists that are not called train') == 1
    assert remark(dataset, 'XML files without an image or not listed') == 1
    assert remark(read_contents(dataset), 'Images without a label or not listed') == 0
