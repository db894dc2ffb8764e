"""30 epochs of fine-tuning with a constant small rate, as DeiT at 384 pixels (arXiv 2012.12877)."""

_base_ = ['schedule_classify.py']

train_cfg = dict(type='ResumableEpochLoop', max_epochs=30, val_interval=1)
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
