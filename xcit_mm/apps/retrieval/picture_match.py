"""Similarity of two pictures after alignment."""

from functools import cache

import cv2
import numpy as np

SIDE = 64  # side of the compared pictures in pixels
COARSE = 16  # side in pixels of the pictures for the search of the alignment
# Grid of initial alignments along each axis, in sides of the whole picture: the scale of the part,
# and the step of its position. The part may extend beyond the whole by one step.
SCALES, STEP = (1.0, 0.9, 0.8), 0.05
HOPELESS = 0.7  # below this correlation, a coarse alignment is not refined
ECC_STEPS, PRECISION, SMOOTHING = 20, 1e-4, 3  # for the refinement by ECC
MIN_SCALE, MAX_SHEAR, MIN_OVERLAP = 0.7, 0.05, 0.7
# Squared gray levels for dark and plain pictures: the constants of SSIM (Wang et al., 2004).
DARK, PLAIN = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def small_picture(image: np.ndarray) -> np.ndarray:
    """Resize a uint8 RGB image (H, W, 3) to a float32 square (SIDE, SIDE, 3)."""
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """Return the similarity of two small pictures, from 0 to 1.

    Either picture may be a part of the other: the position and the scale of the part are searched
    on a grid and refined by ECC. The similarity is the SSIM of the overlap: the product of a
    luminance term and a term for contrast and correlation. The second term is computed for the
    pictures and for their fine details alone, and the smaller value counts, because pictures of
    different skies share only coarse structure.
    """
    grays = [cv2.cvtColor(x, cv2.COLOR_RGB2GRAY) for x in (first, second)]
    if min(gray.var() for gray in grays) < PLAIN:  # correlation would be noise
        return max(0.0, _overlap(first, second, np.eye(2, 3, dtype=np.float32)))
    (correlation, start), (opposite, other) = _coarse(*grays), _coarse(*grays[::-1])
    if opposite > correlation:
        correlation, start, first, second, grays = opposite, other, second, first, grays[::-1]
    if correlation < HOPELESS:
        return 0.0
    return max(0.0, *(_overlap(first, second, x) for x in (start, *_refined(*grays, start))))


def _coarse(whole: np.ndarray, part: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the best correlation, and its transform (2, 3) from the part to the whole."""
    resample, places = _windows()
    windows = resample @ whole @ resample.T
    shape = len(places), COARSE, len(places), COARSE
    windows = windows.reshape(shape).transpose(0, 2, 1, 3).reshape(len(places) ** 2, -1)
    small = cv2.resize(part, (COARSE, COARSE), interpolation=cv2.INTER_AREA).reshape(1, -1)
    windows, small = (x - x.mean(1, keepdims=True) for x in (windows, small))
    lengths = np.linalg.norm(windows, axis=1) * np.linalg.norm(small)
    correlations = (windows @ small[0]) / np.maximum(lengths, 1)
    best = int(correlations.argmax())
    (y_scale, top), (x_scale, left) = (places[i] for i in divmod(best, len(places)))
    # Pixel centers are mapped to pixel centers.
    y, x = (SIDE * n + (s - 1) / 2 for n, s in ((top, y_scale), (left, x_scale)))
    transform = np.array([[x_scale, 0, x], [0, y_scale, y]], np.float32)
    return float(correlations[best]), transform


@cache
def _windows() -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Return the grid of windows along an axis.

    Returns:
        The weights (n * COARSE, SIDE) that resample the windows, and n pairs of scale and start.
    """
    places = [
        (scale, STEP * step)
        for scale in SCALES
        for step in range(-1, round((1 - scale) / STEP) + 2)
    ]
    weights = np.zeros((len(places), COARSE, SIDE), np.float32)
    for n, (scale, start) in enumerate(places):
        edges = SIDE * (start + scale * np.arange(COARSE + 1) / COARSE)
        for bin_ in range(COARSE):
            low, high = edges[bin_], edges[bin_ + 1]
            # The border pixels extend beyond the picture.
            left, right = np.arange(SIDE, dtype=float), np.arange(1.0, SIDE + 1)
            left[0], right[-1] = -np.inf, np.inf
            covered = np.minimum(right, high) - np.maximum(left, low)
            weights[n, bin_] = np.maximum(covered, 0) / (high - low)
    return weights.reshape(-1, SIDE), places


def _refined(whole: np.ndarray, part: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
    """Return the transform refined by ECC in a list, or [] if ECC does not converge."""
    criteria = cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, ECC_STEPS, PRECISION
    try:
        _, transform = cv2.findTransformECC(
            part, whole, start.copy(), cv2.MOTION_AFFINE, criteria, None, SMOOTHING
        )
    except cv2.error:
        return []
    return [transform]


def _overlap(whole: np.ndarray, part: np.ndarray, transform: np.ndarray) -> float:
    """Return the similarity where part and whole overlap, or 0 if they hardly overlap."""
    scales, shear = np.diag(transform[:, :2]), transform[[0, 1], [1, 0]]
    if not MIN_SCALE < scales.min() <= scales.max() < 1 / MIN_SCALE:
        return 0.0
    if np.abs(shear).max() > MAX_SHEAR:
        return 0.0
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    inside = cv2.warpAffine(np.ones((SIDE, SIDE), np.uint8), transform, (SIDE, SIDE), flags=flags)
    inside = inside > 0
    if inside.mean() < MIN_OVERLAP:
        return 0.0
    laid = cv2.warpAffine(
        whole, transform, (SIDE, SIDE), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
    details = [x - cv2.GaussianBlur(x, (0, 0), 4) for x in (laid, part)]
    correlations = [_correlation(*pair, inside) for pair in ((laid, part), details)]
    return _luminance(laid[inside], part[inside]) * min(correlations)


def _luminance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the luminance term of SSIM for pixels (n, 3), for the channel that differs most."""
    a, b = first.mean(0), second.mean(0)
    return float(np.min((2 * a * b + DARK) / (a**2 + b**2 + DARK)))


def _correlation(first: np.ndarray, second: np.ndarray, inside: np.ndarray) -> float:
    """Return the product of contrast and correlation in SSIM, 1 for plain pictures."""
    a, b = (x[inside] - x[inside].mean(0) for x in (first, second))
    return float((2 * np.mean(a * b) + PLAIN) / (np.mean(a**2) + np.mean(b**2) + PLAIN))
