"""How many label images are read before a run, and whether their examples are all."""

import pytest

from xcit_mm.data.audit.examples import NUM_READ, examples_of

SIZE = 5 * NUM_READ


class Labels:
    """Images of one class each; one that is None cannot be read."""

    metainfo = dict(classes=('a', 'b', 'c'))

    def __init__(self, labels: list[int | None]) -> None:
        self.labels, self.read = labels, []

    def __len__(self) -> int:
        return len(self.labels)

    def get_data_info(self, index: int) -> dict:
        self.read.append(index)
        if self.labels[index] is None:
            raise OSError
        return dict(gt_label=self.labels[index])


class Joined:
    def __init__(self, *datasets: object) -> None:
        self.datasets = datasets


class Scenes:
    scenes = ()


@pytest.mark.parametrize(
    ('labels', 'split', 'num_read', 'counts'),
    [
        ([0, 1] * (SIZE // 2), 'train', NUM_READ, None),
        ([0] * SIZE, 'val', NUM_READ, None),
        ([0] * SIZE, 'train', SIZE, [SIZE, 0, 0]),
        ([0, 1, 0, 0], 'train', 4, [3, 1, 0]),
    ],
)
def test_label_images_are_read_until_there_is_something_to_learn(labels, split, num_read, counts):
    dataset = Labels(labels)
    examples, is_complete = examples_of(dataset, split, 0.0)
    assert len(dataset.read) == examples.number == num_read
    assert is_complete == (counts is not None)
    assert counts is None or examples.counts.tolist() == counts


def test_the_second_class_ends_the_reading():
    labels = [0] * SIZE
    labels[SIZE // 2 + 1] = 1  # not among the first ones that are read
    dataset = Labels(labels)
    examples, is_complete = examples_of(dataset, 'train', 0.0)
    assert examples.counts[1] == 1 and not is_complete
    assert NUM_READ < len(dataset.read) == len({*dataset.read}) < SIZE


@pytest.mark.parametrize(('max_bad_share', 'expected'), [(0.1, False), (0.2, True)])
def test_more_bad_images_than_allowed_leave_the_examples_incomplete(max_bad_share, expected):
    examples, is_complete = examples_of(Labels([0] * 16 + [None] * 3), 'train', max_bad_share)
    assert examples.number == 16 and is_complete == expected
    assert examples_of(Labels([None] * 3), 'train', 1.0) == (None, False)


def test_joined_datasets_are_complete_if_each_part_is():
    assert examples_of(Joined(Labels([0]), Labels([1])), 'train', 0.0)[1]
    for other in (Scenes(), Labels([None])):
        examples, is_complete = examples_of(Joined(Labels([0]), other), 'train', 0.0)
        assert examples.number == 1 and not is_complete
