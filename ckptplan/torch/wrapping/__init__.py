"""Makes modules over sequences of modules that take one time step, or many, a call."""
