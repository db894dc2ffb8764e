"""The figures of tidecv, the package of the authors of TIDE, for the scenes of crowded_scenes.py.

``pip install tidecv==1.0.1``, then ``python tests/helpers/tide_values.py`` in tests/helpers writes
tests/expected/tide.json. The package is not a part of CI: it has had no release since 2020.
"""

import json
from pathlib import Path

from crowded_scenes import HEIGHT, WIDTH, crowded_scenes, with_different_scores
from pycocotools import mask as coco_mask

FILE = Path(__file__).resolve().parents[1] / 'expected/tide.json'
SEEDS = range(3)
NAMES = dict(
    Cls='wrong class',
    Loc='wrong place',
    Both='both wrong',
    Dupe='duplicate',
    Bkg='background',
    Miss='missed',
    FalsePos='all false',
    FalseNeg='all missing',
)


def figures(seed: int, kind: str) -> dict[str, float]:
    """Return AP50 and the dAP of each error, from 0 to 1."""
    from tidecv import TIDE, Data

    truth, predictions = crowded_scenes(seed)
    annotated, predicted = Data('annotated', max_dets=10**6), Data('predicted')
    for image in truth['images']:
        annotated.add_image(image['id'], image['file_name'])
    for category in truth['categories']:
        annotated.add_class(category['id'], category['name'])
    for entry in truth['annotations']:
        add = annotated.add_ignore_region if entry['iscrowd'] else annotated.add_ground_truth
        add(entry['image_id'], entry['category_id'], entry['bbox'], run_lengths(entry))
    for entry in with_different_scores(predictions):
        of_entry = entry['image_id'], entry['category_id'], entry['score'], entry['bbox']
        predicted.add_detection(*of_entry, entry['segmentation'])
    run = TIDE(mode=TIDE.BOX if kind == 'bbox' else TIDE.MASK).evaluate(annotated, predicted)
    values = run.fix_main_errors() | run.fix_special_errors()
    costs = {NAMES[error.short_name]: value / 100 for error, value in values.items()}
    return {'AP50': run.ap / 100} | costs


def run_lengths(entry: dict) -> dict:
    mask = entry['segmentation']
    if isinstance(mask, list):
        mask = coco_mask.merge(coco_mask.frPyObjects(mask, HEIGHT, WIDTH))
    return mask


if __name__ == '__main__':
    content = {f'{kind} {seed}': figures(seed, kind) for kind in ('bbox', 'segm') for seed in SEEDS}
    FILE.write_text(f'{json.dumps(content, indent=1)}\n')
