"""The names of metrics as tables and plots show them."""

KINDS = {'coco/bbox_': 'Box', 'coco/segm_': 'Mask'}
PRECISIONS = dict(
    mAP='AP', mAP_50='AP50', mAP_75='AP75', mAP_s='AP small', mAP_m='AP medium', mAP_l='AP large'
)
PANOPTIC = 'coco_panoptic/'
SEGMENTS = {'_th': 'things', '_st': 'stuff'}
ACCURACIES = {'accuracy/': 'Accuracy', 'knn/': 'k-NN accuracy'}
OF_CLASS = {'AP_': 'AP', 'AP50_': 'AP50'}  # followed by the name of the class
# The figures of a class of pixels, followed by its name.
OF_PIXELS = {f'{n}_': n for n in ('IoU', 'Acc', 'Dice', 'Fscore', 'Precision', 'Recall')}
OF_MMDET = '_precision'  # after the name of a class: the AP of its boxes or masks


def title(name: str) -> str:
    """Return a short title of a metric of COCO or of an accuracy, or the name of another metric."""
    for prefix, kind in ACCURACIES.items():
        if name.startswith(f'{prefix}top'):
            return f'{kind}, top {name.removeprefix(f"{prefix}top")}'
    for prefix, kind in KINDS.items():
        if name.startswith(prefix):
            item = name.removeprefix(prefix)
            for start, precision in OF_CLASS.items():
                if item.startswith(start):
                    return f'{kind} {precision} of {item.removeprefix(start)}'
            return f'{kind} {PRECISIONS.get(item, item)}'
    for prefix, figure in OF_PIXELS.items():
        if name.startswith(prefix):
            return f'{figure} of {name.removeprefix(prefix)}'
    if name.startswith('coco/') and name.endswith(OF_MMDET):
        return f'AP of {name.removeprefix("coco/").removesuffix(OF_MMDET)}'
    quality = name.removeprefix(PANOPTIC)
    for suffix, segments in SEGMENTS.items():
        if quality != name and quality.endswith(suffix):
            return f'{quality.removesuffix(suffix)} of {segments}'
    return quality
