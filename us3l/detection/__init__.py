"""Detection and instance segmentation on a sub-network: scenes in the layouts of VOC and COCO, torchvision's Faster and
Mask R-CNN, COCO's metric."""
