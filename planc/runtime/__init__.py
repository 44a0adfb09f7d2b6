"""Executes a plan and decides nothing; of planc it sees plan, errors and units."""
