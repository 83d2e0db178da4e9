"""Schedules as sequences of typed actions, and the simulator that checks them."""
