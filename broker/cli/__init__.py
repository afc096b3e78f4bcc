"""The verbs of the command line that start servers. pystore/cli/_verbs.py names them as text."""
