"""What is done with a collection of images: embedding it, finding in it, predicting its classes."""
