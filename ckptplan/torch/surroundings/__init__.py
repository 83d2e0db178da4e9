"""What steps can reach besides their arguments: found, remembered, compared and put back.

A cell or a loss is a function of its arguments if nothing that it reaches changes what it returns. The objects
that it can reach (attributes of modules, closures, globals, containers) are its *surroundings*. ``walk`` finds
them, ``holders`` read and write each kind, ``snapshot`` remembers them all at a moment.
"""
