"""The tasks that come with normkit, one file each."""
