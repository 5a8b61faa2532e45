"""Where a guide starts: locations, and Gaussians by curvature or from other guides."""
