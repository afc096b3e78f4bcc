"""What one event loop is shared and watched by: turns, budgets, held requests, log lines."""
