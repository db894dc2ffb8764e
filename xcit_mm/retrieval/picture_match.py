"""How alike two pictures are once one is laid over the other."""

import cv2
import numpy as np

SIDE = 64  # pixels of the small pictures that are compared
COARSE = 32  # pixels of the smaller ones whose alignment is searched
BORDER = COARSE // 8  # by which a picture may reach out of the other one
SCALES = 1.0, 0.9, 0.8  # of the part in the whole, where the alignment starts
HOPELESS = 0.5  # correlation of the coarse alignment, below which it is not refined
STEPS, PRECISION, SMOOTHING = 30, 1e-4, 3  # of the refinement by ECC
MIN_SCALE, MAX_SHEAR, MIN_OVERLAP = 0.7, 0.05, 0.7
# Gray levels squared, as in SSIM (Wang et al., 2004), for pictures that are dark or plain.
DARK, PLAIN = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def small_picture(image: np.ndarray) -> np.ndarray:
    """Return an RGB image (H, W, 3) in uint8 as a small square (SIDE, SIDE, 3) in float32."""
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """Return how alike two small pictures are, from 0 to 1.

    Each may be a part of the other: the position and the scale of the part are searched by template
    matching and refined by ECC. Where they overlap, the value is the product of the luminance and
    the correlation of SSIM, the latter also of the fine details alone, which pictures of two skies
    do not have in common.
    """
    grays = [cv2.cvtColor(x, cv2.COLOR_RGB2GRAY) for x in (first, second)]
    if min(gray.var() for gray in grays) < PLAIN:  # correlation would be noise
        return max(0.0, _overlap(first, second, np.eye(2, 3, dtype=np.float32)))
    small = [cv2.resize(x, (COARSE, COARSE), interpolation=cv2.INTER_AREA) for x in grays]
    (correlation, start), (opposite, other) = _coarse(*small), _coarse(*small[::-1])
    if opposite > correlation:
        correlation, start, first, second, grays = opposite, other, second, first, grays[::-1]
    if correlation < HOPELESS:
        return 0.0
    return max(0.0, *(_overlap(first, second, x) for x in (start, *_refined(*grays, start))))


def _coarse(whole: np.ndarray, part: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the best correlation, and the transform (2, 3) from the part to the whole."""
    padded = cv2.copyMakeBorder(whole, *[BORDER] * 4, cv2.BORDER_REPLICATE)
    best, transform = -1.0, np.eye(2, 3, dtype=np.float32)
    for y_scale in SCALES:
        for x_scale in SCALES:
            sides = round(COARSE * x_scale), round(COARSE * y_scale)
            template = cv2.resize(part, sides, interpolation=cv2.INTER_AREA)
            found = cv2.matchTemplate(padded, template, cv2.TM_CCOEFF_NORMED)
            _, value, _, corner = cv2.minMaxLoc(found)
            if value > best:
                best = value
                for axis in range(2):
                    # In pixels of SIDE, whose centers are mapped to centers.
                    scale = sides[axis] / COARSE
                    shift = (corner[axis] - BORDER) * SIDE / COARSE + (scale - 1) / 2
                    transform[axis, [axis, 2]] = scale, shift
    return best, transform


def _refined(whole: np.ndarray, part: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
    """Return the transform that ECC makes of a rough one, or [] if it does not converge."""
    criteria = cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, STEPS, PRECISION
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
    """Return the correlation of all channels, which is 1 for two plain pictures."""
    a, b = (x[inside] - x[inside].mean(0) for x in (first, second))
    spread = np.sqrt(np.mean(a**2) * np.mean(b**2))
    return float((np.mean(a * b) + PLAIN) / (spread + PLAIN))
