"""The laboratory: what developers of mxspec measure, how it compares with other programs, and the documents' tables.

In: bundles, shapes of known models, records in `records/`. Out: records, and what the documents show of them.
"""
