"""Images with heights, as a dataset of mmseg. Needs mmseg."""

from mmengine.registry import DATASETS

from .segmentation_folders import SegmentationFolders


@DATASETS.register_module()
class HeightDataset(SegmentationFolders):
    """Images with a file of heights each, in the folders of ``SegmentationFolders``.

    Its pipeline loads them with :class:`~.height_labels.LoadHeights`.

    Args:
        seg_map_suffix: The end of the names of files with heights.
        kwargs: Arguments of ``SegmentationFolders``, such as ``data_prefix=dict(img_path='images',
            seg_map_path='heights')``.
    """

    METAINFO = dict(classes=('height',), palette=[(68, 1, 84)])

    def __init__(self, seg_map_suffix: str = '.tif', **kwargs: object) -> None:
        super().__init__(seg_map_suffix=seg_map_suffix, **kwargs)

    def load_data_list(self) -> list[dict]:
        samples = super().load_data_list()
        for sample in samples:  # mmseg's name for files that hold no classes
            if 'seg_map_path' in sample:
                sample['depth_map_path'] = sample.pop('seg_map_path')
        return samples
