"""The processes that share a batch: their losses, their norms, how they start."""
