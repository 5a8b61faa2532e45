"""The initialisation of guides: locations, and Gaussians by curvature or from other guides."""
