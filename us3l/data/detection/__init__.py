"""Scenes with boxes and masks, in the layouts of Pascal VOC and COCO."""
