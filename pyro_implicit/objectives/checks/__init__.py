"""What an objective looks at once, or now and then, so that no number is silently wrong."""
