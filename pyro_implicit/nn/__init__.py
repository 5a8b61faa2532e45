"""Networks that make parameters, and networks that take them."""
