"""The losses and predictions of classifiers, against their definitions."""

import numpy as np
import pytest
import torch
from helpers.small_xcit import SMALL
from mmengine.structures import BaseDataElement
from torch.nn import functional as F

from xcit_mm.network.models import ImageXCiT
from xcit_mm.network.models.image_classifier import ImageClassifier
from xcit_mm.train.distillation.module_teacher import ModuleTeacher
from xcit_mm.train.metrics.accuracy_metric import AccuracyMetric

CLASSES = 6
PREPROCESSOR = dict(type='ImagePreprocessor', mean=[120.0], std=[60.0])
BACKBONE = dict(type='ImageXCiT', arch=SMALL, patch_size=16, num_classes=CLASSES)


def classifier(**kwargs):
    torch.manual_seed(0)
    model = ImageClassifier(BACKBONE, PREPROCESSOR, **kwargs)
    model.init_weights()
    return model


def batch(labels=(0, 3, 5, 1)):
    torch.manual_seed(1)
    images = torch.randn(len(labels), 3, 48, 32)
    return images, [BaseDataElement(gt_label=label) for label in labels]


def of_file(path, num_classes=CLASSES):
    """Write an XCiT, and return it and the config of a teacher that reads it."""
    torch.manual_seed(2)
    network = ImageXCiT(SMALL, 16, num_classes=num_classes).eval()
    torch.nn.init.normal_(network.head.weight)
    with torch.no_grad():  # so that images have different classes
        network.head.bias -= network(batch()[0]).mean(0)
    images = dict(channels=3, mean=[120.0], std=[60.0], bgr_to_rgb=False)
    torch.save(dict(state_dict=network.state_dict(), meta=dict(images=images)), path)
    module = dict(type='ImageXCiT', arch=SMALL, patch_size=16, num_classes=num_classes)
    return network, dict(type=ModuleTeacher, module=module, checkpoint=str(path))


def test_the_loss_is_the_cross_entropy_with_the_labels():
    model, (images, samples) = classifier(), batch()
    expected = F.cross_entropy(model(images), torch.tensor([0, 3, 5, 1]))
    torch.testing.assert_close(model(images, samples, mode='loss'), dict(loss=expected))


def test_images_and_labels_are_mixed_in_the_same_shares():
    model, (images, samples) = classifier(mixup=dict(mixup_alpha=1.0, label_smoothing=0.0)), batch()
    np.random.seed(3)
    loss = model(images.clone(), samples, mode='loss')['loss']  # timm mixes in place
    np.random.seed(3)
    share = model.mixup._params_per_batch()[0]
    assert 0 < share < 1
    one_hot = F.one_hot(torch.tensor([0, 3, 5, 1]), CLASSES)
    mixed, targets = (share * x + (1 - share) * x.flip(0) for x in (images, one_hot))
    torch.testing.assert_close(loss, F.cross_entropy(model(mixed), targets))


def test_half_of_the_loss_is_of_the_class_that_the_teacher_predicts(tmp_path):
    network, teacher = of_file(tmp_path / 'teacher.pth')
    model, (images, samples) = classifier(teacher=teacher), batch()
    losses = model(images, samples, mode='loss')
    with torch.no_grad():
        predicted = network(images).argmax(-1)
    assert len(set(predicted.tolist())) > 1
    logits = model(images)
    expected = dict(
        loss_labels=F.cross_entropy(logits, torch.tensor([0, 3, 5, 1])) / 2,
        loss_teacher=F.cross_entropy(logits, predicted) / 2,
    )
    torch.testing.assert_close(losses, expected)
    assert not any('teacher' in name for name in model.state_dict())
    assert model.description['teacher']['weights'] == str(tmp_path / 'teacher.pth')


def test_predictions_are_probabilities_and_their_best_class():
    model, (images, samples) = classifier().eval(), batch()
    with torch.no_grad():
        predicted = model(images, samples, mode='predict')
        expected = model(images).softmax(-1)
    torch.testing.assert_close(torch.stack([s.pred_scores for s in predicted]), expected)
    assert [s.pred_label for s in predicted] == expected.argmax(-1).tolist()


def test_accuracies_follow_from_the_ranks():
    scores = torch.eye(CLASSES)[[0, 0, 0, 1]] + torch.linspace(0, 0.1, CLASSES)
    samples = [
        dict(pred_scores=s, gt_label=label) for s, label in zip(scores, (0, 0, 1, 2), strict=True)
    ]
    metric = AccuracyMetric()
    metric.process({}, samples)
    # Right: both of class 0, not 1 and 2. Class 1 is the last of the six, class 2 is the fifth.
    metrics = metric.evaluate(4)
    assert metrics == pytest.approx(
        {'accuracy/top1': 50, 'accuracy/top5': 75, 'accuracy/mean_of_classes': 100 / 3}
    )
    metric.dataset_meta = dict(classes=[f'class {i}' for i in range(CLASSES)])
    (tables,) = metric.error_tables()
    assert np.argwhere(tables.confusion).tolist() == [[0, 0], [1, 0], [2, 1]]
    assert tables.confusion.sum() == len(tables.images) == 4
    assert tables.images[2][1] == {0: (0, 1, 0), 1: (1, 0, 0)}


def test_scores_that_are_not_finite_are_no_success():
    sample = dict(pred_scores=torch.full((CLASSES,), np.nan), gt_label=0, img_path='a.png')
    metric = AccuracyMetric()
    metric.process({}, [sample])
    assert metric.compute_metrics(metric.results)['top1'] == 0
