"""Detection and instance segmentation on a sub-network: torchvision's Faster and Mask R-CNN, COCO's metric."""
