"""Images with many objects, crowds and wrong predictions, in COCO's form."""

import numpy as np
from pycocotools import mask as coco_mask

HEIGHT, WIDTH = 120, 160
CATEGORIES = (7, 1, 4, 9)  # the last has no objects


def run_lengths(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {**encoded, 'counts': encoded['counts'].decode()}


def draw(rng: np.random.Generator) -> tuple[list[float], np.ndarray]:
    """Return a box of any of COCO's three sizes, and a mask in it."""
    size = np.exp(rng.uniform(np.log(3), np.log(115), 2))
    left, top = rng.uniform(0, (WIDTH, HEIGHT) - size)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[int(top) : int(top + size[1]) + 1, int(left) : int(left + size[0]) + 1] = True
    mask[int(top) : int(top + size[1] / 2), int(left) : int(left + size[0] / 2)] = False
    return [float(np.float32(x)) for x in (left, top, *size)], mask


def crowded_scenes(seed: int) -> tuple[dict, list[dict]]:
    """Draw annotations with crowds and empty images, and predictions, up to 150 in an image.

    Half of the scores are equal to others.
    """
    rng = np.random.default_rng(seed)
    images, annotations, predictions = [], [], []

    def predict(image: int, category: int, box: list[float], mask: np.ndarray) -> None:
        score = float(rng.choice([rng.random(), rng.integers(1, 5) / 5]))
        predicted = dict(image_id=image, category_id=category, bbox=box, score=score)
        predictions.append({**predicted, 'segmentation': run_lengths(mask)})

    for image in range(1, 16):
        images.append(dict(id=image, height=HEIGHT, width=WIDTH, file_name=f'{image}.jpg'))
        for _ in range(rng.integers(0, 10) if image % 4 else 0):
            (box, mask), category = draw(rng), int(rng.choice(CATEGORIES[:3]))
            is_crowd = bool(rng.random() < 0.2)
            segmentation = run_lengths(mask)
            if not is_crowd and rng.random() < 0.5:
                x, y, w, h = box
                segmentation = [[x, y, x + w, y, x + w, y + h, x, y + 0.8 * h]]
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=image,
                    category_id=category,
                    bbox=box,
                    area=float(mask.sum()),
                    iscrowd=int(is_crowd),
                    segmentation=segmentation,
                )
            )
            for shift in rng.integers(-5, 6, size=(rng.integers(0, 4), 2)):
                moved = [float(v) for v in box + np.r_[shift, 0, 0]]
                predict(image, category, moved, np.roll(mask, shift[::-1], (0, 1)))
        for _ in range(150 if image % 5 == 0 else 3):
            predict(image, int(rng.choice(CATEGORIES[:2])), *draw(rng))
    categories = [dict(id=i, name=str(i)) for i in CATEGORIES]
    return dict(images=images, annotations=annotations, categories=categories), predictions


def with_different_scores(predictions: list[dict]) -> list[dict]:
    """Replace the scores by others, no two of which are equal."""
    order = np.random.default_rng(0).permutation(len(predictions)).tolist()
    return [
        {**prediction, 'score': (place + 1) / (len(order) + 1)}
        for prediction, place in zip(predictions, order, strict=True)
    ]
