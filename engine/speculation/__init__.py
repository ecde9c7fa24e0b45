"""More than one token a pass: drafts are guessed cheaply and verified together."""
