"""The drawings of context_semantic.py as whole images, which are read and computed by windows."""

_base_ = ['context_semantic.py']

stream = dict(memory='2GiB', store=None)

train_pipeline = [
    dict(type='OpenImage'),
    dict(type='OpenLabels'),
    dict(type='FlipAndTurn'),
    dict(type='PackScene'),
]
test_pipeline = [
    dict(type='OpenImage'),
    dict(type='OpenLabels', may_be_empty=True),
    dict(type='PackScene'),
]
# The two images of a drawing, which differ in their key, follow each other and share a step.
train_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(shuffle=False),
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(num_workers=0, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
