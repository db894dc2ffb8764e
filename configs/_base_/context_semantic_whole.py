"""The drawings of context_semantic.py as whole images, read by windows."""

_base_ = ['context_semantic.py']

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
# Windows are read in the process of the model. The two images of a scene, which differ only in
# their key, are consecutive and share an optimizer step.
loading = dict(num_workers=0, persistent_workers=False, timeout=0)
train_dataloader = dict(
    batch_size=1,
    sampler=dict(shuffle=False),
    dataset=dict(pipeline=train_pipeline),
    **loading,
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline), **loading)
test_dataloader = val_dataloader
