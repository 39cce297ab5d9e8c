"""Every statement that awa sends: one function a statement, one file a statement.

The functions take a Session, say what they do in their name, and know nothing of workers or leaders.
"""
