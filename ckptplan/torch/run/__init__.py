"""Executes the actions of a schedule: advances, records and reverses the steps of a call."""
