"""Shared by all runtimes: order of actions, looking ahead and events. Has the executor of callbacks, too."""
