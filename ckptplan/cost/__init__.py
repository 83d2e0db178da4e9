"""Turns a workload and a profile into costs of actions, and costs of actions into costs of schedules."""
