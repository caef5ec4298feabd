"""The training loop: steps, optimizer, schedule, evaluation, resume."""
