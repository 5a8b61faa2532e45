"""Parameters and running statistics that a fit trains, copies and puts back."""
