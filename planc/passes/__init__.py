"""What decides: one file a pass; each turns decisions into decisions and speaks of tasks, never of steps or lanes."""
