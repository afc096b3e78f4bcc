"""What stands on nothing of ours."""
