"""The page: one HTML file that carries its style, its figures and its calculator, and loads nothing."""
