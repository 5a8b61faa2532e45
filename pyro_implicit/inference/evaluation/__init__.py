"""What a fit's predictions are judged by: observations, what is kept of draws, the report."""
