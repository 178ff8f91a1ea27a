"""What every program needs and no network knows: errors, files, the console, progress, devices, seeds, stopping."""
