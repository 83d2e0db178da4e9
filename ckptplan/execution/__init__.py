"""What runtimes share: the order of actions, looking ahead, and events; and the executor of callbacks."""
