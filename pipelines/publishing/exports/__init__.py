"""Other forms of a published model: a file a form, and a line of the EXPORTS registry."""
