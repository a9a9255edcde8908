"""A model in a larger shape that computes what it computed before: real texts and acceptance at the cost of a larger model.

shape.py    the shapes, and what fits into them
axes.py     which place of a new axis holds which place of the old one
fill.py     a matrix in its new axes
model.py    a model's tensors, layer by layer
heads.py    heads that read its features
gguf.py     the tensors as one GGUF file
folder.py   a whole model folder, written as it is made
"""
