"""What ``poutine.condition`` holds: sites, their values, their rows, and what is said of them."""
