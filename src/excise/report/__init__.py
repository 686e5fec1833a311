"""A run as people read it: terminal and Markdown tables from one list of columns."""
