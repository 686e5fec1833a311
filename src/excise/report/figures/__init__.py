"""The figures, one module a question; each takes the facts and gives a Figure, or says what was not measured."""
