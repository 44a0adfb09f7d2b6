"""Reports: what people want to see of a plan, from the plan and its timeline alone."""
