"""What `us3l doctor` does: lists what a machine has, and checks that its device computes what the CPU computes."""
