"""Simulations that drive the same decision code as the real system, with SimPy; their scenarios and figures."""
