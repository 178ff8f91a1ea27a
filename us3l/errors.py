"""Errors that are the input's fault, not the program's."""


class UserError(Exception):
    """Something about the input is wrong; the message says what and what to do.

    The command line prints the message as one line and exits with code 2.
    """
