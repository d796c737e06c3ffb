"""How far each part is from published figures: the tables, what recomputes them, and the bounds.

One file per part states its table with the source and what the model says today. ``registry`` lists
all comparisons; ``kvfabric validate`` and the tests run it.
"""
