"""The built-in network beside networks that one may download: see docs/lab/builtin.md."""
