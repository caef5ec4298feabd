"""Knowledge distillation from finished runs."""
