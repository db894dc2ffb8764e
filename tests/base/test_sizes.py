import pytest

from xcit_mm.base.sizes import bytes_of


@pytest.mark.parametrize(
    ('text', 'number'),
    [
        ('2GiB', 2 * 2**30),
        ('1.5 Gi', 3 * 2**29),
        ('.5gib', 2**29),
        ('500MB', 500_000_000),
        ('3k', 3000),
        ('1e9', 10**9),
        ('7B', 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text, number):
    assert bytes_of(text) == number


@pytest.mark.parametrize('text', ['2Gib', '2Gb', 'GiB', '0GiB', '-1GB', 'much', '1e999', '2PB', ''])
def test_what_is_no_size_or_means_bits_is_refused(text):
    with pytest.raises(ValueError, match='is not'):
        bytes_of(text)
