"""How fast a fit goes on, when it goes back, and when it ends."""
