"""Errors of torch and Pyro, told in words of the data that caused them."""
