"""Makes plans for a limit of memory: measures steps, chooses a plan, and watches the sizes of later steps."""
