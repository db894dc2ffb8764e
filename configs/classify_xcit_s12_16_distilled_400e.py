"""XCiT-S12/16 on ImageNet with a convolutional teacher; published: 83.3 % top-1 (table 1)."""

_base_ = ['classify_xcit_s12_16_400e.py']

model = dict(
    teacher=dict(type='TimmTeacher', name='regnety_160.deit_in1k', pretrained=True, size=224)
)
