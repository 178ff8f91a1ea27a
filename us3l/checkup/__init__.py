"""What `us3l doctor` does: looks at a machine, checks and measures it, and says what would suit it."""
