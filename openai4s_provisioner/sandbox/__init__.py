"""What stands between a session and everything else of the same account: one seam, and the proof that it holds.

`seam` is what a sandbox must do, `bubblewrap` does it, `layout` decides what is visible inside, `policy` says so for a
session, and `probe` proves it by attacking a decoy. Standard library only, Python 3.9: all of this also runs on nodes.
"""
