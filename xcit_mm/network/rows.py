"""What a layer needs from rows of an image that its input does not hold.

XCiT reads other rows in four places: a 3x3 convolution reads the rows above and below, BatchNorm
and the attention add up sums over all tokens, and the position encoding counts the rows. In these
places, layers ask a :class:`Rows`. Everything else acts on each token by itself.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ..base.errors import ArgumentError
from .fast.unmodified import is_unmodified

MULTIPLE = 32  # pixels; no pooling window crosses a border at a multiple of them


class Rows:
    """The rows of an input that holds all rows of its images.

    Attributes:
        sum: Adds the sums over the tokens of other rows to given sums (see :func:`.xca_of_part`);
            None if there are no other rows.
    """

    sum: Callable[[Tensor], Tensor] | None = None

    @property
    def passed(self) -> tuple['Rows', ...]:
        """These rows as an argument; no argument if there are no others, so any layer works."""
        return () if self is ALONE else (self,)

    @property
    def of_pixels(self) -> 'Rows':
        """The rows for layers that read or write pixels."""
        return self

    def check(self, images: Tensor, check_size: Callable[[Sequence[int]], None]) -> None:
        """Check the size of the images with ``check_size``."""
        check_size(images.shape)

    def position(self, encode: Callable[..., Tensor], H: int, W: int) -> Tensor:
        """Return the encoded positions (1 or B, C, H, W) of these rows."""
        return encode(H, W)

    def convolve(self, conv: nn.Module, x: Tensor) -> Tensor:
        """Return the output of a 3x3 convolution for these rows."""
        return conv(x)

    def normalize(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return the output of a BatchNorm for these rows."""
        return norm(x)

    def agreed(self, x: Tensor) -> Tensor:
        """Return random numbers that are the same for all rows."""
        return x

    def with_data(self, x: Tensor) -> Tensor:
        """Return the tokens (B, N, C) with zeros where there are no data."""
        return x


ALONE = Rows()


class RowsWithGaps(Rows):
    """Rows in which some tokens have no data; convolutions read zeros there, as beyond the image.

    Args:
        valid: (H, W) bool, which tokens have data.
    """

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid

    @property
    def of_pixels(self) -> Rows:
        return ALONE

    def convolve(self, conv: nn.Module, x: Tensor) -> Tensor:
        return conv(x * self.valid)


def require_unmodified(*layers: nn.Module) -> None:
    """Refuse layers that must be called, where their weights are used without calling them."""
    for layer in layers:
        if not is_unmodified(layer):
            raise ArgumentError(
                f'a {type(layer).__name__} with hooks, or of another class, cannot be used where '
                'images are shared by processes or padded: merge it into its weights first'
            )
