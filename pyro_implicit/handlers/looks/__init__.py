"""Looks at a program: what it reads, keeps and depends on, without leaving a trace in it."""
