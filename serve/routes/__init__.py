"""The routes of the server, a file each."""
