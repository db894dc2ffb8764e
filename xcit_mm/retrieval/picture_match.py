"""How alike two pictures are once one is laid over the other."""

from functools import cache

import cv2
import numpy as np

SIDE = 64  # pixels of the small pictures that are compared
COARSE = 16  # pixels of the smaller ones whose alignment is searched
# Where the alignment starts, along each axis: scales of the part in the whole, and steps of its
# position, by which it may also reach out of the whole. In sides of the whole.
SCALES, STEP = (1.0, 0.9, 0.8), 0.05
HOPELESS = 0.7  # correlation of the coarse alignment, below which it is not refined
ECC_STEPS, PRECISION, SMOOTHING = 20, 1e-4, 3  # of the refinement by ECC
MIN_SCALE, MAX_SHEAR, MIN_OVERLAP = 0.7, 0.05, 0.7
# Gray levels squared, as in SSIM (Wang et al., 2004), for pictures that are dark or plain.
DARK, PLAIN = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def small_picture(image: np.ndarray) -> np.ndarray:
    """Return an RGB image (H, W, 3) in uint8 as a small square (SIDE, SIDE, 3) in float32."""
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """Return how alike two small pictures are, from 0 to 1.

    Each may be a part of the other: the position and the scale of the part are searched on a grid
    and refined by ECC. Where they overlap, the value is SSIM: the product of the luminance and
    of contrast and correlation, the latter also of the fine details alone, which pictures of two
    skies do not have in common.
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
    """Return the best correlation, and the transform (2, 3) from the part to the whole."""
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
    # Centers of pixels are mapped to centers.
    y, x = (SIDE * n + (s - 1) / 2 for n, s in ((top, y_scale), (left, x_scale)))
    transform = np.array([[x_scale, 0, x], [0, y_scale, y]], np.float32)
    return float(correlations[best]), transform


@cache
def _windows() -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Return the grid of windows along an axis.

    Returns:
        The weights (n * COARSE, SIDE) that resample each window, and its scale and start (n).
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
            # The pixels at the border go on outside.
            left, right = np.arange(SIDE, dtype=float), np.arange(1.0, SIDE + 1)
            left[0], right[-1] = -np.inf, np.inf
            covered = np.minimum(right, high) - np.maximum(left, low)
            weights[n, bin_] = np.maximum(covered, 0) / (high - low)
    return weights.reshape(-1, SIDE), places


def _refined(whole: np.ndarray, part: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
    """Return the transform that ECC makes of a rough one, or [] if it does not converge."""
    criteria = cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, ECC_STEPS, PRECISION
    try:
        _, transform = cv2.findTransformECC(
            part, whole, start.copy(), cv2.MOTION_AFFINE, criteria, None, SMOOTHING
        )
    except cv2.error:
        return []
    return [transform]


def _overlap(whole: np.ndarray, part: np.ndarray, transform: np.ndarray) -> float:
    """Return the similarity where the part lies on the whole, or 0 if it hardly does."""
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
    """Return the luminance term of SSIM for pixels (n, 3), of the channel that differs most."""
    a, b = first.mean(0), second.mean(0)
    return float(np.min((2 * a * b + DARK) / (a**2 + b**2 + DARK)))


def _correlation(first: np.ndarray, second: np.ndarray, inside: np.ndarray) -> float:
    """Return the product of contrast and correlation in SSIM, which is 1 for plain pictures."""
    a, b = (x[inside] - x[inside].mean(0) for x in (first, second))
    return float((2 * np.mean(a * b) + PLAIN) / (np.mean(a**2) + np.mean(b**2) + PLAIN))
