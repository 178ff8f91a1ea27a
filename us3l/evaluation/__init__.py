"""Accuracy of networks: features, kNN, linear probes, fine-tuning, and comparison of runs."""
