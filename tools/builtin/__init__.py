"""The program that makes the built-in network: see docs/lab/builtin.md."""
