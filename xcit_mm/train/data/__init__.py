"""The data of a run: loaded in an order that can be resumed, by processes that can fail."""

PRELOAD = 'XCIT_MM_PRELOAD'  # the variable that names what the fork server imports in preload.py
