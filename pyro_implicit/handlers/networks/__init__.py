"""Networks that a program calls: their modes, parameters, buffers and places."""
