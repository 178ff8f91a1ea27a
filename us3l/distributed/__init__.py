"""The processes that share a batch: their losses, their norms, their shares of the parameters, how they start."""
