"""The best sub-networks within a budget, found without labels."""
