"""Faults on purpose, too many or too slow for the tests; see docs/reliability.md. The tests run small versions."""
