"""A folder of images and a folder of their labels, as a dataset of mmseg. Needs mmseg."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmseg.datasets import BaseSegDataset

from ...base.errors import UserError, printable
from ...base.finder import IMAGE_SUFFIXES, LeftOut, find_files, find_spelled


@DATASETS.register_module()
class SegmentationFolders(BaseSegDataset):
    """mmseg's ``BaseSegDataset``, but with images of all suffixes.

    Linked folders are read, and hidden ones are not. The name of a label file may be spelled
    differently from the name of its image (see :func:`.same_name`).

    Args:
        img_suffix: The ends of the names of the images, in any case.
        kwargs: Arguments of ``BaseSegDataset``. The folders in ``data_prefix`` have to be local.

    Attributes:
        remark: A sentence on what is left out, or ''.

    Raises:
        UserError: If two images would have the same labels, or a listed image is missing.
    """

    def __init__(self, img_suffix: str | Sequence[str] = IMAGE_SUFFIXES, **kwargs: object) -> None:
        suffixes = (img_suffix,) if isinstance(img_suffix, str) else tuple(img_suffix)
        super().__init__(img_suffix=suffixes, **kwargs)

    def load_data_list(self) -> list[dict]:
        left = LeftOut()
        images = self._listed() if self.ann_file else self._found(left)
        common = dict(label_map=self.label_map, reduce_zero_label=self.reduce_zero_label)
        samples = [dict(common, img_path=str(image), seg_fields=[]) for image in images.values()]
        remarks = left.remarks()
        folder = self.data_prefix.get('seg_map_path')
        if folder is not None:
            labels = [_spelled(Path(folder, name + self.seg_map_suffix)) for name in images]
            for sample, file in zip(samples, labels, strict=True):
                sample['seg_map_path'] = str(file)
            files = {*find_files(Path(folder), [self.seg_map_suffix])}
            unused = sorted(files - {*labels, *images.values()})
            if unused and not self.ann_file:
                remarks[f'Label files without an image, such as {unused[0]}'] = len(unused)
        listed = '; '.join(f'{remark}: {count}' for remark, count in remarks.items())
        self.remark = listed and f'{self.data_prefix["img_path"]}: {listed}'
        if self.remark:
            print_log(printable(self.remark), 'current')
        return samples

    def _listed(self) -> dict[str, Path]:
        """Return the images that the list names without their suffixes."""
        images = {}
        for line in Path(self.ann_file).read_text(encoding='utf-8').splitlines():
            if name := line.strip():
                path = Path(self.data_prefix['img_path'], name)
                files = find_spelled(path, self.img_suffix)
                if len(files) != 1:
                    which = f'is {" or ".join(map(str, files))}' if files else 'is missing'
                    raise UserError(f'{self.ann_file}: the image {path} {which}: correct the list')
                images[name] = files[0]
        return images

    def _found(self, left: LeftOut) -> dict[str, Path]:
        """Return the images of the folder by their paths in it without their suffixes."""
        folder = Path(self.data_prefix['img_path'])
        labels = Path(self.data_prefix.get('seg_map_path') or folder / 'labels')
        images: dict[str, Path] = {}
        for file in sorted(find_files(folder, self.img_suffix, left)):
            if file.is_relative_to(labels) and file.name.endswith(self.seg_map_suffix):
                continue
            path = file.relative_to(folder).as_posix()
            ends = [end for end in self.img_suffix if path.lower().endswith(end.lower())]
            other = images.setdefault(path[: -len(max(ends, key=len))], file)
            if other != file:
                raise UserError(
                    f'{other} and {file} would have the same labels: rename or remove one of '
                    'them, or set img_suffix of the dataset'
                )
        return images


def _spelled(path: Path) -> Path:
    spelled = find_spelled(path)
    return spelled[0] if len(spelled) == 1 else path
