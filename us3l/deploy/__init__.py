"""From a run to a device: costs and latencies of widths, the best one within budgets, proved files."""
