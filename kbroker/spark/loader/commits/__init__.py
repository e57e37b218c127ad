"""The commits of a lake, which say what is in it.

Read `commit.py` first: it has the commit itself, which is on disk. `commit_files.py` keeps commits in a directory,
`topic_commits.py` those of a lake in an object store. `publish.py` gives the files of a commit their names. Which
records a commit gets is decided in `plans/`.
"""
