"""Data models of the program: frozen, validated, and in SI base units."""
