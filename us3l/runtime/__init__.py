"""A network at any width in a program of one's own."""
