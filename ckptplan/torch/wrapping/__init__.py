"""Turns modules that take a step, or a sequence, into modules that train within a limit of memory."""
