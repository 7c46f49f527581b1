"""The fault catalogue: published defects planted in correct code, and the checks that catch them.

`base` has the nouns, `checks` what operators share, and a file for each area has its targets and
faults; `catalogue.AREAS` lists them, and `run.run` judges them all. A new fault is a `Fault` in its
area's FAULTS, a new area one file with `area()` and its line in the catalogue.
"""
