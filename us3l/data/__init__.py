"""Image sources, and the batched augmentation that makes two views of them."""
