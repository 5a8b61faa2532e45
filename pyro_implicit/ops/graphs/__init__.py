"""Functions of tensors recorded as graphs, and replayed with the same bits."""
