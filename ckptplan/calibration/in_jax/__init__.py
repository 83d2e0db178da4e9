"""Calibrates and validates cells of JAX: whole programs are timed, and their memory is the compiler's."""
