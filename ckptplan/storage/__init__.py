"""Files to models and back, with errors that name the file and the place in it."""
