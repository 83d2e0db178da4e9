"""Shows results to people: on a console, in files, on pages, in pictures, and in notebooks."""
