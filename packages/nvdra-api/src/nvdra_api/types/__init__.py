"""What exists: names, ids, errors and the API objects.

Imports the standard library and pydantic.
"""
