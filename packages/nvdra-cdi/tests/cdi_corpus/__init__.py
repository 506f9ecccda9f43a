# SPDX-License-Identifier: Apache-2.0
"""Documents for every rule and field of the CDI standard, and the reference library to ask.

table           rules and fields, by the numbers of docs/reference/cdi.md
rules, fields   documents for each; mixtures: for all at once; notations: by hand
containers      spec directories and what is injected into; words: names and annotations
corpus          all documents, from one seed
oracle          the reference library, a Go program in ../oracle
verdicts        what a side says of a document; differences: those we intend
comparison, injections, namings    both sides asked; report: what came of it

`python -m cdi_corpus` in the folder above writes REPORT.md.
"""
