"""Files that other programs and the README rely on, and the code that writes them anew."""
