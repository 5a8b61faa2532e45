"""From a fitted guide to ArviZ, and checks that need nothing but draws."""
