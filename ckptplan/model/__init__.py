"""The data that flows through the program: frozen, validated, in SI base units."""
